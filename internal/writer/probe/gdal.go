//go:build cgo

// Package probe looks at one staged file with GDAL: it proves the file complete and
// yields its catalog.Facts, or says why the output is refused.
//
// It runs in catalogd-probe children only, never in the server's process, and is, with
// that program, the only user of cgo. GDAL sees nothing but the byte ranges of the file
// at hand: one driver registered, no sidecar files, no network, no plug-ins. Limits on
// memory, CPU and descriptors are set by Limit; the kernel holds it to that with Confine.
//
// The flow is look.go; the parts that need no GDAL are packages of their own beside
// this one: tiff, gpkg, flatgeobuf, geojson, jp2 (completeness), footprint (outline),
// wire (the pipe).
package probe

/*
#cgo pkg-config: gdal
#include <stdlib.h>
#include <gdal.h>
#include <cpl_conv.h>
#include <cpl_error.h>
#include <ogr_srs_api.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/airbusgeo/godal"

	"catalogd/internal/catalog"
	"catalogd/internal/writer/wire"
)

// drivers are all that GDAL may open files with, by GDAL's name: those of
// catalog.Drivers that this GDAL has. A driver belongs there once it follows no reference
// to another file or address, and once prove.go has a proof of completeness for it.
var drivers []string

// register makes the drivers known to GDAL, and those that decode the tiles in a
// GeoPackage, which open nothing else. GTiff must be there.
func register() error {
	drivers = nil
	for _, codec := range []godal.DriverName{"PNG", "JPEG", "WEBP"} {
		_ = godal.RegisterRaster(codec) // a tile that cannot be decoded is refused
	}
	for _, name := range catalog.Drivers() {
		var errs []error
		if name != catalog.DriverFlatGeobuf && name != catalog.DriverGeoJSON {
			errs = append(errs, godal.RegisterRaster(godal.DriverName(name)))
		}
		if name == catalog.DriverFlatGeobuf || name == catalog.DriverGeoJSON || name == catalog.DriverGPKG {
			errs = append(errs, godal.RegisterVector(godal.DriverName(name)))
		}
		if err := errors.Join(errs...); err == nil {
			drivers = append(drivers, name)
		} else if name == catalog.DriverGTiff {
			return fmt.Errorf("register drivers: %w", err)
		}
	}
	return nil
}

// config is GDAL's, for the whole process.
var config = map[string]string{
	// Nothing but the file itself.
	"GDAL_DISABLE_READDIR_ON_OPEN":     "EMPTY_DIR",
	"GDAL_PAM_ENABLED":                 "NO",
	"GDAL_GEOREF_SOURCES":              "INTERNAL",
	"USE_RRD":                          "NO",
	"GDAL_DRIVER_PATH":                 "disable",
	"CPL_VSIL_CURL_ALLOWED_EXTENSIONS": "none",
	"GDAL_HTTP_MAX_RETRY":              "0",
	// Little memory, one thread.
	"GDAL_MAX_DATASET_POOL_SIZE": "2",
	"GDAL_NUM_THREADS":           "1",
	// Read as anybody would: no shortcuts, no overviews made up, no error passed over.
	"GTIFF_DIRECT_IO":               "NO",
	"GTIFF_VIRTUAL_MEM_IO":          "NO",
	"GTIFF_IMPLICIT_JPEG_OVR":       "NO",
	"GTIFF_IGNORE_READ_ERRORS":      "NO",
	"GDAL_ERROR_ON_LIBJPEG_WARNING": "TRUE",
	// Features are streamed once they need more than this, in MiB.
	"OGR_GEOJSON_MAX_OBJ_SIZE": "64",
	"OSR_WKT_FORMAT":           "WKT2_2019",
	"CPL_DEBUG":                "OFF",
}

const cacheMaxBytes = 16 << 20

// Setup prepares GDAL and PROJ, and opens PROJ's database, for the calling thread.
// Once per process, before the first Look.
func Setup() error {
	C.CPLSetErrorHandler(C.CPLErrorHandler(C.CPLQuietErrorHandler))
	for k, v := range config {
		ck, cv := C.CString(k), C.CString(v)
		C.CPLSetConfigOption(ck, cv)
		C.free(unsafe.Pointer(ck))
		C.free(unsafe.Pointer(cv))
	}
	C.GDALSetCacheMax64(cacheMaxBytes)
	C.OSRSetPROJEnableNetwork(0)
	if err := register(); err != nil {
		return err
	}
	if err := godal.RegisterVSIHandler(vsiPrefix, current, godal.VSIHandlerBufferSize(0), godal.VSIHandlerStripPrefix(true)); err != nil {
		return fmt.Errorf("register file handler: %w", err)
	}
	utm, err := godal.NewSpatialRefFromEPSG(32633)
	if err != nil {
		return fmt.Errorf("PROJ does not know EPSG:32633; is proj.db where PROJ_LIB says? %w", err)
	}
	defer utm.Close()
	p, err := newProjection(utm)
	if err != nil {
		return err
	}
	p.Close()
	return nil
}

// byCode gives the WKT2 of codes. PROJ keeps what it was asked by thread, and tells a
// system by it: after a GeoTIFF in UTM the datum of WGS 84 is one datum, after EPSG:4326
// the ensemble of its realizations. So codes have a thread of their own, that is asked
// nothing else.
var byCode = sync.OnceValue(func() func(code string) string {
	codes, texts := make(chan string), make(chan string)
	go func() {
		runtime.LockOSThread()
		known := map[string]string{}
		for code := range codes {
			if _, ok := known[code]; !ok {
				sr, err := godal.NewSpatialRef(code, godal.ErrLogger(ignore))
				if err == nil {
					known[code] = wire.Text(wkt2(sr), wire.MaxCRS)
					sr.Close()
				}
			}
			texts <- known[code]
		}
	}()
	return func(code string) string {
		codes <- code
		return <-texts
	}
})

// Hello says what this program is.
func Hello() wire.Hello {
	var major, minor, patch C.int
	C.OSRGetPROJVersion(&major, &minor, &patch)
	v := godal.Version()
	h := wire.Hello{
		Protocol: wire.Version,
		GDAL:     fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Revision()),
		PROJ:     fmt.Sprintf("%d.%d.%d", major, minor, patch),
	}
	h.Drivers = append(h.Drivers, drivers...)
	return h
}

// vsiPrefix is where the one file is that there is for GDAL.
const vsiPrefix = "/vsicatalogd/"

// current serves the file that is being looked at.
var current = &vsi{}

type vsi struct {
	mu   sync.Mutex
	name string
	src  *wire.Source
}

func (v *vsi) set(name string, src *wire.Source) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.name, v.src = name, src
}

func (v *vsi) get(name string) (*wire.Source, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if name != v.name || v.src == nil {
		return nil, os.ErrNotExist
	}
	return v.src, nil
}

// Size implements godal.KeySizerReaderAt. Siblings are absent.
func (v *vsi) Size(name string) (int64, error) {
	src, err := v.get(name)
	if err != nil {
		return -1, err
	}
	return src.Size(), nil
}

// ReadAt implements godal.KeySizerReaderAt.
func (v *vsi) ReadAt(name string, p []byte, off int64) (int, error) {
	src, err := v.get(name)
	if err != nil {
		return 0, err
	}
	return src.ReadAt(p, off)
}

// open opens the current file with a driver, for its raster or its features, as a part of itself: godal
// v0.0.18 gives out memory that it never filled where GDAL asks for several ranges at once and two of
// them touch (VSIGoHandle::ReadMultiRange; a COG with a mask will do), and GDAL's handler
// for parts of files does not ask for several. GDAL's complaints about a file that it opens all the
// same do not matter; those about one that it does not are the error.
func open(src *wire.Source, driver string, features bool) (*godal.Dataset, error) {
	var said []string
	options := []godal.OpenOption{godal.RasterOnly()}
	if features {
		options[0] = godal.VectorOnly()
	}
	if driver == catalog.DriverGPKG {
		// Not views that its contents do not list: their queries may never end.
		options = append(options, godal.DriverOpenOption("LIST_ALL_TABLES=NO"))
	}
	name := fmt.Sprintf("/vsisubfile/0_%d,%s%s", src.Size(), vsiPrefix, current.name)
	options = append(options, godal.Drivers(driver),
		godal.ErrLogger(func(category godal.ErrorCategory, _ int, msg string) error {
			if category < godal.CE_Failure {
				return nil
			}
			// godal says this, and nothing else does, where GDAL returned no dataset
			// and no complaint was an error to us.
			if msg == "unknown error" {
				if said == nil {
					said = []string{"it gives no reason"}
				}
				return errors.New(strings.Join(said, "; "))
			}
			if len(said) < 4 {
				said = append(said, plain(msg))
			}
			return nil
		}))
	return godal.Open(name, options...)
}

// plain takes out of one of GDAL's messages what says nothing to others: names of files
// that are none, ours and those in memory, addresses of memory, and where in its own
// source GDAL was. What is left is one line.
func plain(msg string) string {
	for _, noise := range []*regexp.Regexp{vsiNames, pointers, sources} {
		msg = noise.ReplaceAllString(msg, "")
	}
	return strings.Trim(strings.Join(strings.Fields(msg), " "), ":; ")
}

var (
	vsiNames = regexp.MustCompile(`['"\x60(]?/vsi\w+/[^\s:;'")\x60]*['")\x60]?[:;,]?\s?`)
	pointers = regexp.MustCompile(`\(?\b0x[0-9a-fA-F]{6,}\b\)?`)
	// "./gcore/gdalrasterblock.cpp, 1108: …", "… in file `x.cpp', line 7", "… at x.cpp:7".
	sources = regexp.MustCompile(`(?:\s*\b(?:in|at)(?: file)? |\s*\()?[\x60'"]?[\w./+-]*\w\.(?:c|cc|cpp|cxx|h|hh|hpp)\b['"]?(?:, ?(?:line:? )?|:|\()\d+\)*(?::\d+)?`)
)

// handle is GDAL's own handle of a band, for what godal does not offer. godal.Band
// consists of it alone, which the array's size checks when this is compiled.
func handle(b godal.Band) C.GDALRasterBandH {
	var _ [unsafe.Sizeof(b)]byte = [unsafe.Sizeof(uintptr(0))]byte{}
	return *(*C.GDALRasterBandH)(unsafe.Pointer(&b))
}

// spatialHandle is GDAL's own handle of a reference system; see handle.
func spatialHandle(sr *godal.SpatialRef) C.OGRSpatialReferenceH {
	type mirror struct {
		handle  C.OGRSpatialReferenceH
		isOwned bool
	}
	var _ [unsafe.Sizeof(*sr)]byte = [unsafe.Sizeof(mirror{})]byte{}
	return (*mirror)(unsafe.Pointer(sr)).handle
}

// wkt2 is a reference system as WKT2:2019; "" for none. (OSR_WKT_FORMAT would do so for
// godal's WKT, but GDAL's drivers pass systems through WKT too, and would then read
// others than gdalinfo does.)
func wkt2(sr *godal.SpatialRef) string {
	format := C.CString("FORMAT=WKT2_2019")
	defer C.free(unsafe.Pointer(format))
	options := []*C.char{format, nil}
	var text *C.char
	if spatialHandle(sr) == nil || C.OSRExportToWktEx(spatialHandle(sr), &text, &options[0]) != C.OGRERR_NONE {
		text = nil
	}
	defer C.CPLFree(unsafe.Pointer(text))
	return C.GoString(text)
}

func unitType(b godal.Band) string { return C.GoString(C.GDALGetRasterUnitType(handle(b))) }

// noData is a band's nodata value as text; nil for none. 64-bit integers keep all their
// digits.
func noData(b godal.Band) *string {
	var ok C.int
	var text string
	switch C.GDALGetRasterDataType(handle(b)) {
	case C.GDT_Int64:
		text = strconv.FormatInt(int64(C.GDALGetRasterNoDataValueAsInt64(handle(b), &ok)), 10)
	case C.GDT_UInt64:
		text = strconv.FormatUint(uint64(C.GDALGetRasterNoDataValueAsUInt64(handle(b), &ok)), 10)
	default:
		v := float64(C.GDALGetRasterNoDataValue(handle(b), &ok))
		switch {
		case math.IsNaN(v):
			text = "nan"
		case math.IsInf(v, 0):
			text = strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(v, 'g', -1, 64)), "+")
		default:
			text = strconv.FormatFloat(v, 'g', -1, 64)
		}
	}
	if ok == 0 {
		return nil
	}
	return &text
}
