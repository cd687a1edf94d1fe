"""One table of all steps, metrics.csv, for a spreadsheet.

Lightning's CSVLogger keeps every step in memory and writes the whole file anew at each flush; this one is made from
metrics.jsonl at the end, with a column for every key that any step has, so it costs a run nothing.
"""

import csv
import io

from ppo_lightning.loggers.sinks import Metrics, Samples
from ppo_lightning.run_dir import RunDir, read_metrics


class CsvSink:
    """Writes `metrics.csv` of the run directory."""

    name = "CSV"

    def __init__(self, run_dir: RunDir) -> None:
        self.path = run_dir.path

    def __call__(self, step: int, metrics: Metrics, samples: Samples) -> None:
        """Do nothing: metrics.jsonl has the step."""

    def close(self) -> None:
        """Write the file, whole or not at all."""
        rows = read_metrics(self.path)
        columns = sorted({key for row in rows for key in row}, key=lambda key: (key != "step", key))
        text = io.StringIO()
        table = csv.DictWriter(text, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        partial = self.path / "metrics.csv.partial"
        partial.write_text(text.getvalue(), encoding="utf-8")
        partial.replace(self.path / "metrics.csv")
