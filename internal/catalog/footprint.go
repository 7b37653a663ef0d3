package catalog

import (
	"encoding/binary"
	"fmt"

	geom "github.com/twpayne/go-geom"
	"github.com/twpayne/go-geom/encoding/ewkb"
)

// SRID of footprints: WGS 84, longitude then latitude.
const SRID = 4326

// EncodeFootprint writes a footprint as EWKB; nil as nothing.
func EncodeFootprint(footprint *geom.MultiPolygon) ([]byte, error) {
	if footprint == nil {
		return nil, nil
	}
	return ewkb.Marshal(footprint, binary.LittleEndian)
}

// DecodeFootprint reads what EncodeFootprint wrote.
func DecodeFootprint(b []byte) (*geom.MultiPolygon, error) {
	if len(b) == 0 {
		return nil, nil
	}
	g, err := ewkb.Unmarshal(b)
	if err != nil {
		return nil, err
	}
	footprint, ok := g.(*geom.MultiPolygon)
	if !ok {
		return nil, fmt.Errorf("footprint is a %T", g)
	}
	return footprint, nil
}
