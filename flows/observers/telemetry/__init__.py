"""Metrics and traces of a drive, for Prometheus and OpenTelemetry; they never change, delay or fail a run.

`RunTelemetry` is the entry. Off unless `cluster.metrics_port` or OTEL_EXPORTER_OTLP_ENDPOINT asks for it.
"""
