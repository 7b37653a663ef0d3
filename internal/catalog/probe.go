package catalog

// ProbeRequest says what a collection takes, and so what the probe refuses.
type ProbeRequest struct {
	// MediaType is what begin announced.
	MediaType         string `json:"media_type"`
	SparseAllowed     bool   `json:"sparse_allowed"`
	FootprintOptional bool   `json:"footprint_optional"`
	// Decode reads and decodes every block of every band as proof.
	Decode bool `json:"decode"`
}
