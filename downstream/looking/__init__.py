"""What leaves a run for people and other programs: pictures, charts, the report, exports."""
