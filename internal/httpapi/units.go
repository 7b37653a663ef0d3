package httpapi

import (
	"context"
	"encoding/json"
	"errors"
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

func (s *server) GetCurrent(ctx context.Context, req GetCurrentRequestObject) (GetCurrentResponseObject, error) {
	if err := checkSlot(req.Params.Collection, req.Params.TileId); err != nil {
		return nil, err
	}
	tile, err := s.Catalogue.CurrentTile(ctx, req.Params.Collection, req.Params.TileId)
	if err != nil {
		return nil, err
	}
	return GetCurrent200JSONResponse(toTile(tile, exchangeOf(ctx).base)), nil
}

func (s *server) GetHistory(ctx context.Context, req GetHistoryRequestObject) (GetHistoryResponseObject, error) {
	if err := checkSlot(req.Params.Collection, req.Params.TileId); err != nil {
		return nil, err
	}
	moves, err := s.Catalogue.SlotHistory(ctx, req.Params.Collection, req.Params.TileId)
	if err != nil {
		return nil, err
	}
	out := GetHistory200JSONResponse{Collection: req.Params.Collection, TileId: req.Params.TileId, History: make([]SlotMove, len(moves))}
	for i, m := range moves {
		out.History[i] = SlotMove{
			UnitKey: m.UnitKey, Version: m.Version, ObjectKey: m.ObjectKey,
			ValidFrom: m.From, ValidTo: m.To, MovedBy: m.By, Reason: SlotMoveReason(m.Reason),
		}
	}
	return out, nil
}

// checkSlot refuses what can be no place, naming the parameter.
func checkSlot(collection, tileID string) error {
	var refused *catalog.Error
	switch {
	case errors.As(catalog.CheckCollectionID(collection), &refused):
		return refused.At("collection")
	case errors.As(catalog.CheckTileID(tileID), &refused):
		return refused.At("tile_id")
	}
	return nil
}

func toTile(t catalog.Tile, base string) Tile {
	out := Tile{
		UnitKey: t.UnitKey, Collection: t.Collection, TileId: t.TileID, Version: t.Version,
		Identity: object(t.Identity), ClientKey: optional(t.ClientKey),
		StoreId: t.StoreID, ObjectKey: t.ObjectKey, Href: href(base, t.ObjectKey),
		SizeBytes: t.SizeBytes, Checksum: t.Checksum, Etag: t.ETag,
		MediaType: t.Facts.MediaType, Driver: t.Facts.Driver, IsCog: t.Facts.IsCOG,
		Footprint: toGeometry(t.Facts), Crs: optional(t.Facts.CRS), CrsWkt: optional(t.Facts.CRSWKT),
		Bands: toBands(t.Facts.Bands), Layout: toLayout(t.Facts.Layout), Layers: toLayers(t.Facts.Layers),
		AcquiredStart: t.Facts.Acquired.Start, AcquiredEnd: t.Facts.Acquired.End,
		Properties: object(t.Properties), AttemptId: t.AttemptID, BatchId: t.BatchID,
		RegisteredAt: t.RegisteredAt, PublishedAt: t.PublishedAt, WithdrawnAt: t.WithdrawnAt,
		LostSince: t.LostSince, Current: t.Current,
	}
	if len(t.Facts.Bands) > 0 {
		out.Width, out.Height = &t.Facts.Width, &t.Facts.Height
	}
	if t.Facts.Transform != [6]float64{} {
		out.Transform = new(t.Facts.Transform[:])
	}
	return out
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
		if s := b.Statistics; s != nil {
			out[i].Statistics = &Statistics{Minimum: s.Minimum, Maximum: s.Maximum, Mean: s.Mean, Stddev: s.StdDev}
		}
	}
	return out
}

func toLayout(l catalog.Layout) Layout {
	out := Layout{Compression: optional(l.Compression), Interleave: optional(l.Interleave), CogReason: optional(l.COGReason)}
	if l.BlockSize != [2]int{} {
		out.BlockSize = new(l.BlockSize[:])
	}
	if l.Mask {
		out.Mask = &l.Mask
	}
	if len(l.Overviews) > 0 {
		sizes := make([]PixelSize, len(l.Overviews))
		for i, size := range l.Overviews {
			sizes[i] = size[:]
		}
		out.Overviews = &sizes
	}
	return out
}

func toLayers(layers []catalog.Layer) []Layer {
	out := make([]Layer, len(layers))
	for i, l := range layers {
		out[i] = Layer{Name: l.Name, GeometryType: l.GeometryType, FeatureCount: l.FeatureCount, Crs: optional(l.CRS), Fields: make([]Field, len(l.Fields))}
		for j, f := range l.Fields {
			out[i].Fields[j] = Field(f)
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
