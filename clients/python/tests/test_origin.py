"""Owner and try are those that `catalogd exec` finds, in internal/client/origin.go."""

import base64
import hashlib
import json
import os
import tempfile
import unittest
import zlib

from .serving import catalogd

CONTEXT = {"run_id": "r1", "job_name": "tiles", "retry_number": 2, "asset_keys": ["dem"], "partition_key": "33UXP"}


def packed(v: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(v).encode())).decode()


class Origin(unittest.TestCase):
    def test_orchestrators(self) -> None:
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump(CONTEXT, file)
            file.flush()
            for env, want in [
                ({"AIRFLOW_CTX_DAG_ID": "tiles", "AIRFLOW_CTX_DAG_RUN_ID": "manual__2026-08-04", "AIRFLOW_CTX_TASK_ID": "cut", "AIRFLOW_CTX_TRY_NUMBER": "3",
                  "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "pod"}, ("airflow:tiles/manual__2026-08-04/cut", 3)),
                ({"AIRFLOW_CTX_DAG_ID": "tiles", "AIRFLOW_CTX_TASK_ID": "cut", "AIRFLOW_CTX_MAP_INDEX": "7", "AIRFLOW_CTX_TRY_NUMBER": "x"}, ("airflow:tiles/cut[7]", 0)),
                ({"AIRFLOW_CTX_DAG_ID": "tiles", "AIRFLOW_CTX_TASK_ID": "cut", "AIRFLOW_CTX_MAP_INDEX": "-1"}, ("airflow:tiles/cut", 0)),
                ({"DAGSTER_PIPES_CONTEXT": packed({"data": CONTEXT})}, ("dagster:tiles/r1/dem/33UXP", 2)),
                ({"DAGSTER_PIPES_CONTEXT": packed({"path": file.name})}, ("dagster:tiles/r1/dem/33UXP", 2)),
                ({"DAGSTER_PIPES_CONTEXT": packed({"path": "/nowhere"}), "SLURM_JOB_ID": "9"}, ("slurm:9", 0)),
                ({"DAGSTER_PIPES_CONTEXT": "AAAA", "DAGSTER_RUN_JOB_NAME": "tiles", "DAGSTER_RUN_STEP_KEY": "cut"}, ("dagster:tiles/cut", 0)),
                ({"CELERY_TASK_ID": "f3", "CELERY_TASK_RETRIES": "1"}, ("celery:f3", 1)),
                ({"CELERY_TASK_ID": "f3", "CELERY_TASK_RETRIES": "99999999999"}, ("celery:f3", 0)),
                ({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "2", "SLURM_CLUSTER_NAME": "hpc", "SLURM_PROCID": "0",
                  "SLURM_RESTART_COUNT": "4"}, ("slurm:hpc/10_2/0", 4)),
                ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "cut-0", "POD_NAMESPACE": "eo"}, ("kubernetes:eo/cut-0", 0)),
                ({"CELERY_TASK_ID": "a\nb"}, ("celery:a_b", 0)),
                ({"CELERY_TASK_ID": "a\udcff\udcfeb"}, ("celery:a_b", 0)),
                ({"CELERY_TASK_ID": "ä" * 300}, ("celery:" + "ä" * 116 + "~" + hashlib.sha256(("celery:" + "ä" * 300).encode()).hexdigest()[:16], 0)),
                ({"HOSTNAME": "laptop"}, (catalogd._here(), 0)),
            ]:
                with self.subTest(env=env):
                    self.assertEqual(catalogd._find_origin(env), want)

    def test_said(self) -> None:
        os.environ["CELERY_TASK_ID"], os.environ["CELERY_TASK_RETRIES"] = "f3", "2"
        try:
            self.assertEqual(catalogd.Catalog()._origin(), ("celery:f3", 2))
            self.assertEqual(catalogd.Catalog(try_=5)._origin(), ("celery:f3", 5))
            self.assertEqual(catalogd.Catalog(owner="me")._origin(), ("me", 0))
            os.environ["CATALOGD_OWNER"], os.environ["CATALOGD_TRY"] = "they", "1"
            self.assertEqual(catalogd.Catalog()._origin(), ("they", 1))
        finally:
            for name in ("CELERY_TASK_ID", "CELERY_TASK_RETRIES", "CATALOGD_OWNER", "CATALOGD_TRY"):
                os.environ.pop(name, None)

    def test_patience(self) -> None:
        for text, seconds in [("10m", 600), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), ("7", 7)]:
            self.assertEqual(catalogd._duration(text), seconds)
        with self.assertRaises(ValueError):
            catalogd._duration("10 minutes")
