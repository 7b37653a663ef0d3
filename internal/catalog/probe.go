package catalog

import "slices"

// ProbeRequest says what a collection takes, and so what the probe refuses.
type ProbeRequest struct {
	// MediaType is what begin announced, and what the file must be: one announced as
	// a COG must be one, and a COG may be announced as GeoTIFF. "" for anything.
	MediaType string `json:"media_type"`
	// Drivers that may open it; GTiff alone if there are none.
	Drivers           []string `json:"drivers,omitempty"`
	SparseAllowed     bool     `json:"sparse_allowed"`
	FootprintOptional bool     `json:"footprint_optional"`
	// Decode reads and decodes every block of every band, or every feature, as proof.
	Decode bool `json:"decode"`
}

// Takes tells whether files of a driver are taken.
func (r ProbeRequest) Takes(driver string) bool {
	if len(r.Drivers) == 0 {
		return driver == DriverGTiff
	}
	return slices.Contains(r.Drivers, driver)
}
