package tiff

import "fmt"

// COG tells whether the file is laid out as a cloud-optimised GeoTIFF, and if
// not, why not. The rules are those of GDAL's validate_cloud_optimized_geotiff.py:
// the main image's directory comes first, right after the header; then those of
// its overviews, largest first; then the blocks, overviews before the main
// image. Images of more than 512 pixels are tiled (stricter: there, strips of up to
// 1,024 pixels pass). Whether large images have overviews is, as there, advice and
// no rule.
func (r Report) COG() (ok bool, why string) {
	if len(r.Pages) == 0 {
		return false, "it has no page"
	}
	if r.edited {
		return false, "it was edited in a way that broke its layout"
	}
	main := r.Pages[0]
	const untiled = 512
	if !main.Tiled && (main.Width > untiled || main.Height > untiled) {
		return false, fmt.Sprintf("an image of %d × %d should be tiled", main.Width, main.Height)
	}
	start := uint64(8)
	if r.BigTIFF {
		start = 16
	}
	// The directory begins on an even offset.
	start += r.ghost
	start += start % 2
	if main.Offset != start && (r.ghost > 0 || main.Offset != 8 && main.Offset != 16) {
		return false, fmt.Sprintf("the main image's directory is at %d and should be at %d", main.Offset, start)
	}
	previous := main
	for i, p := range r.Pages[1:] {
		if !p.Reduced || p.Mask || p.SubIFD {
			continue
		}
		switch {
		case p.Width > previous.Width || p.Height > previous.Height:
			return false, fmt.Sprintf("the overview on page %d is larger than the one before it", i+2)
		case p.Offset < previous.Offset:
			return false, fmt.Sprintf("the directory of the overview on page %d comes before the one of a larger image", i+2)
		case p.FirstBlock != 0 && previous.FirstBlock != 0 && p.FirstBlock > previous.FirstBlock:
			return false, fmt.Sprintf("the blocks of the overview on page %d come after those of a larger image", i+2)
		}
		if !p.Tiled && (p.Width > untiled || p.Height > untiled) {
			return false, fmt.Sprintf("the overview on page %d should be tiled", i+2)
		}
		previous = p
	}
	for i, p := range r.Pages {
		if p.FirstBlock != 0 && p.FirstBlock < previous.Offset {
			return false, fmt.Sprintf("blocks of page %d come before the last overview's directory", i+1)
		}
	}
	return true, ""
}
