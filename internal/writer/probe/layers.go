//go:build cgo

package probe

/*
#include <ogr_api.h>
#include <cpl_error.h>

// read_layer reads every feature of a layer, and says how many there were, or -1 once
// GDAL complains. box becomes the extent of their geometries; some, whether there are any.
static long long read_layer(OGRLayerH layer, OGREnvelope *box, int *some) {
	long long n = 0;
	*some = 0;
	OGR_L_ResetReading(layer);
	for (;;) {
		CPLErrorReset();
		OGRFeatureH f = OGR_L_GetNextFeature(layer);
		if (f != NULL) {
			OGRGeometryH g = OGR_F_GetGeometryRef(f);
			if (g != NULL && !OGR_G_IsEmpty(g)) {
				OGREnvelope e;
				OGR_G_GetEnvelope(g, &e);
				if (!*some || e.MinX < box->MinX) box->MinX = e.MinX;
				if (!*some || e.MinY < box->MinY) box->MinY = e.MinY;
				if (!*some || e.MaxX > box->MaxX) box->MaxX = e.MaxX;
				if (!*some || e.MaxY > box->MaxY) box->MaxY = e.MaxY;
				*some = 1;
			}
			OGR_F_Destroy(f);
		}
		if (CPLGetLastErrorType() >= CE_Failure) return -1;
		if (f == NULL) return n;
		n++;
	}
}
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/airbusgeo/godal"
	geom "github.com/twpayne/go-geom"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

// layerHandle is GDAL's own handle of a layer; see handle.
func layerHandle(l godal.Layer) C.OGRLayerH {
	var _ [unsafe.Sizeof(l)]byte = [unsafe.Sizeof(uintptr(0))]byte{}
	return *(*C.OGRLayerH)(unsafe.Pointer(&l))
}

// layerCRS is nil for none. It is the layer's, and not to be closed.
func layerCRS(l godal.Layer) *godal.SpatialRef {
	if C.OGR_L_GetSpatialRef(layerHandle(l)) == nil {
		return nil
	}
	return l.SpatialRef()
}

// describeLayers adds the facts of features to f, all but the footprint.
func describeLayers(ds *godal.Dataset, p proven, f *wire.Facts) *wire.Refusal {
	layers := ds.Layers()
	if len(layers) == 0 && len(f.Bands) == 0 {
		return refuse(catalog.CodeNotARaster, "the file has no layer")
	}
	if len(layers) > wire.MaxLayers {
		return refuse(catalog.CodeNotARaster, "the file has %s layers; at most %s are taken", grouped(uint64(len(layers))), grouped(wire.MaxLayers))
	}
	sets := []map[string]string{ds.Metadatas()}
	fields := 0
	var wkt string
	for i, l := range layers {
		out := catalog.Layer{
			Name:         wire.Text(l.Name(), wire.MaxBandText),
			GeometryType: C.GoString(C.OGRGeometryTypeToName(C.OGR_L_GetGeomType(layerHandle(l)))),
			FeatureCount: int64(C.OGR_L_GetFeatureCount(layerHandle(l), 1)),
			Fields:       []catalog.Field{},
		}
		if out.FeatureCount < 0 {
			return refuse(catalog.CodeNotARaster, "GDAL cannot count the features of layer %q: %s", out.Name, plain(C.GoString(C.CPLGetLastErrorMsg())))
		}
		definition := C.OGR_L_GetLayerDefn(layerHandle(l))
		if fields += int(C.OGR_FD_GetFieldCount(definition)); fields > wire.MaxFields {
			return refuse(catalog.CodeNotARaster, "the layers have more than %s fields", grouped(wire.MaxFields))
		}
		for j := range C.OGR_FD_GetFieldCount(definition) {
			field := C.OGR_FD_GetFieldDefn(definition, j)
			out.Fields = append(out.Fields, catalog.Field{
				Name: wire.Text(C.GoString(C.OGR_Fld_GetNameRef(field)), wire.MaxBandText),
				Type: C.GoString(C.OGR_GetFieldTypeName(C.OGR_Fld_GetType(field))),
			})
		}
		if sr := layerCRS(l); sr != nil {
			out.CRS, wkt = crs(sr)
		}
		f.Layers = append(f.Layers, out)
		if own := l.Metadatas(); len(layers) == 1 {
			sets = append(sets, own)
		} else {
			sets = append(sets, marksOf(own))
		}
		// The file's own is what all its layers share.
		if len(f.Bands) == 0 && i == 0 {
			f.CRS, f.CRSWKT = out.CRS, wkt
		} else if len(f.Bands) == 0 && out.CRS != f.CRS {
			f.CRS, f.CRSWKT = "", ""
		}
	}
	return addTags(f, p, sets...)
}

// locateLayers finds the outline of the extent of all layers with features that have a
// geometry.
func locateLayers(ds *godal.Dataset, p proven, f *wire.Facts) (*geom.MultiPolygon, *wire.Refusal) {
	box := [4]float64{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
	var sr *godal.SpatialRef
	var system string
	for i, l := range ds.Layers() {
		b, ok := extent(l, p)
		if !ok || f.Layers[i].GeometryType == "None" || f.Layers[i].FeatureCount == 0 || !finite(b[:]...) {
			continue
		}
		if math.IsInf(box[0], 0) {
			sr, system = layerCRS(l), f.Layers[i].CRS
		} else if system != f.Layers[i].CRS {
			return nil, refuse(catalog.CodeNoFootprint, "the layers have several coordinate reference systems: write them in one")
		}
		box = [4]float64{min(box[0], b[0]), min(box[1], b[1]), max(box[2], b[2]), max(box[3], b[3])}
	}
	if math.IsInf(box[0], 0) {
		return nil, refuse(catalog.CodeNoFootprint, "no feature has a geometry, and so there is no outline")
	}
	return locateBox(sr, box[0], box[1], box[2], box[3])
}

// extent of a layer: what the proof found, else what GDAL says, which may be no more than
// what a writer said (a FlatGeobuf without an index; a GeoPackage with geometries that do
// not say where they are). False if no feature has a geometry.
func extent(l godal.Layer, p proven) ([4]float64, bool) {
	if box, ok := p.extents[l.Name()]; ok {
		return box, finite(box[:]...)
	}
	var e C.OGREnvelope
	if C.OGR_L_GetExtent(layerHandle(l), &e, 1) != C.OGRERR_NONE {
		return [4]float64{}, false
	}
	return boxOf(e), true
}

func boxOf(e C.OGREnvelope) [4]float64 {
	return [4]float64{float64(e.MinX), float64(e.MinY), float64(e.MaxX), float64(e.MaxY)}
}

// decodeLayers has GDAL read every feature, with its geometry, which must be where the
// layer says that it is.
func decodeLayers(ds *godal.Dataset, p proven) error {
	for _, l := range ds.Layers() {
		want := int64(C.OGR_L_GetFeatureCount(layerHandle(l), 1))
		var envelope C.OGREnvelope
		var some C.int
		got := int64(C.read_layer(layerHandle(l), &envelope, &some))
		if got < 0 {
			return fmt.Errorf("layer %q: %s", l.Name(), plain(C.GoString(C.CPLGetLastErrorMsg())))
		}
		if got != want {
			return fmt.Errorf("layer %q: %d of %d features can be read", l.Name(), got, want)
		}
		said, ok := extent(l, p)
		is := boxOf(envelope)
		for i := range is {
			if ok && some != 0 && !(math.Abs(is[i]-said[i]) <= 1e-7*max(1, math.Abs(is[i]))) {
				return fmt.Errorf("layer %q: it says that its features lie in %v, and they lie in %v", l.Name(), said, is)
			}
		}
	}
	return nil
}
