package demo

import (
	"fmt"
	"math"
	"strings"
)

// tile is one window of a scene.
type tile struct {
	ID          string
	Row, Column int
	Window      window
}

// window is what gdal_translate -srcwin takes: x and y of the upper left corner,
// width and height, pixels.
type window [4]int

// args are those of gdal_translate -srcwin.
func (w window) args() []string {
	return strings.Fields(fmt.Sprint(w[0], w[1], w[2], w[3]))
}

// limits of a scene and of its grid.
const (
	minSide  = 8
	maxTiles = 10_000
)

// cut divides a scene into a grid of at least the given number of tiles, as
// square a grid as its sides allow. The tiles cover each pixel once, and their
// sides differ by a pixel at most.
func cut(width, height, atLeast int) ([]tile, error) {
	switch {
	case width < minSide || height < minSide:
		return nil, fmt.Errorf("it has %d × %d pixels: give a raster of %d × %d or more", width, height, minSide, minSide)
	case atLeast < 64 || atLeast > maxTiles:
		return nil, fmt.Errorf("%d tiles are asked for: ask for 64 to %d", atLeast, maxTiles)
	case atLeast > width*height:
		return nil, fmt.Errorf("it has %d × %d pixels: too few for %d tiles", width, height, atLeast)
	}
	columns := min(int(math.Ceil(math.Sqrt(float64(atLeast)))), width)
	rows := min((atLeast+columns-1)/columns, height)
	columns = max(columns, (atLeast+rows-1)/rows)

	var tiles []tile
	for r := range rows {
		for c := range columns {
			x, y := c*width/columns, r*height/rows
			tiles = append(tiles, tile{
				ID:  fmt.Sprintf("r%02d/c%02d", r, c),
				Row: r, Column: c,
				Window: window{x, y, (c+1)*width/columns - x, (r+1)*height/rows - y},
			})
		}
	}
	return tiles, nil
}

// deliveries asks for tiles of a scene in one of the versions.
func deliveries(s scene, tiles []tile, version int) []delivery {
	out := make([]delivery, len(tiles))
	for i, t := range tiles {
		out[i] = delivery{Collection: collection, Tile: t.ID, Identity: identity{
			Scene: s.Checksum, Window: t.Window, ZLevel: versions[version].zlevel, Version: versions[version].name,
		}}
	}
	return out
}
