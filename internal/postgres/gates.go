package postgres

import (
	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
)

const selectGate = `
SELECT g.gate_id, g.batch_id, b.name, g.state, g.max_missing_frac, g.max_quarantined, g.storage, coalesce(g.sample_size, 0), g.reasons, g.figures, g.offenders,
       coalesce(g.error_code, ''), coalesce(g.error_message, ''), g.asked_by, g.created_at, g.started_at, g.ended_at
FROM catalog.gates g JOIN catalog.batches b USING (batch_id)`

func scanGate(row pgx.CollectableRow) (catalog.Gate, error) {
	var g catalog.Gate
	err := row.Scan(&g.ID, &g.BatchID, &g.Batch, &g.State, &g.MaxMissingFrac, &g.MaxQuarantined, &g.Storage, &g.SampleSize, &g.Reasons, &g.Figures, &g.Offenders,
		&g.ErrorCode, &g.ErrorMessage, &g.AskedBy, &g.CreatedAt, &g.StartedAt, &g.EndedAt)
	return g, err
}
