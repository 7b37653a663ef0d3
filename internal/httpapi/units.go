package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/twpayne/go-geom/encoding/geojson"

	"catalogd/internal/catalog"
)

func (s *server) GetUnit(ctx context.Context, req GetUnitRequestObject) (GetUnitResponseObject, error) {
	tile, err := s.Catalogue.Tile(ctx, req.UnitKey)
	if err != nil {
		return nil, err
	}
	return GetUnit200JSONResponse(toTile(tile, exchangeOf(ctx).base)), nil
}

func (s *server) HeadUnit(ctx context.Context, req HeadUnitRequestObject) (HeadUnitResponseObject, error) {
	if _, err := s.Catalogue.Tile(ctx, req.UnitKey); err != nil {
		return nil, err
	}
	return HeadUnit200Response{}, nil
}

func toTile(t catalog.Tile, base string) Tile {
	return Tile{
		UnitKey: t.UnitKey, Collection: t.Collection, TileId: t.TileID, Version: t.Version,
		Identity: object(t.Identity), ClientKey: optional(t.ClientKey),
		StoreId: t.StoreID, ObjectKey: t.ObjectKey, Href: href(base, t.ObjectKey),
		SizeBytes: t.SizeBytes, Checksum: t.Checksum, Etag: t.ETag,
		MediaType: t.Facts.MediaType, Driver: t.Facts.Driver, IsCog: t.Facts.IsCOG,
		Footprint: toGeometry(t.Facts), Crs: optional(t.Facts.CRS), Transform: t.Facts.Transform[:],
		Width: t.Facts.Width, Height: t.Facts.Height, Bands: toBands(t.Facts.Bands),
		AcquiredStart: t.Facts.Acquired.Start, AcquiredEnd: t.Facts.Acquired.End,
		Properties: object(t.Properties), AttemptId: t.AttemptID, BatchId: t.BatchID,
		RegisteredAt: t.RegisteredAt, PublishedAt: t.PublishedAt, WithdrawnAt: t.WithdrawnAt,
		LostSince: t.LostSince, Current: t.Current,
	}
}

func href(base, objectKey string) string {
	return base + (&url.URL{Path: "/data/" + objectKey}).EscapedPath()
}

// toGeometry is GeoJSON, null for none.
func toGeometry(f catalog.Facts) *Geometry {
	if f.Footprint == nil {
		return nil
	}
	text, err := geojson.Marshal(f.Footprint)
	if err != nil {
		panic(fmt.Errorf("encode a footprint as GeoJSON: %w", err)) // it came out of geometry(MultiPolygon)
	}
	return new(Geometry(text))
}

func toBands(bands []catalog.Band) []Band {
	out := make([]Band, len(bands))
	for i, b := range bands {
		out[i] = Band{
			DataType: b.DataType, Nodata: b.NoData, Description: optional(b.Description), Unit: optional(b.Unit),
			ColorInterpretation: optional(b.ColorInterp), Scale: b.Scale, Offset: b.Offset,
		}
	}
	return out
}

// object is raw, or an empty object for none.
func object(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	return raw
}
