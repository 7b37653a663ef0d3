package hostile

import (
	"archive/zip"
	"bytes"
	"math/rand/v2"
	"strings"
)

// Targets are what references go to.
var Targets = []string{
	"/etc/passwd", "/proc/self/mem", "/proc/self/environ", "/dev/zero", "/dev/stdin", "../../etc/passwd", "http://127.0.0.1:9/x.tif", "file:///etc/passwd",
	"/vsicurl/http://127.0.0.1:9/x.tif", "/vsis3/bucket/x.tif", "/vsistdin/", "/vsizip//etc/passwd", "/vsitar/http://127.0.0.1/x", "/vsigzip//etc/passwd",
	"/vsisubfile/0_100,/etc/passwd", "GTIFF_DIR:1:/etc/passwd", "PG:host=127.0.0.1", "WMS:http://127.0.0.1:9/", "/vsicatalogd/staged", "\\\\127.0.0.1\\share\\x.tif",
}

// references are texts that have GDAL open something else; TARGET stands for it.
var references = []string{
	`<VRTDataset rasterXSize="20" rasterYSize="20"><SRS>EPSG:4326</SRS><GeoTransform>0,1,0,0,0,-1</GeoTransform><VRTRasterBand dataType="Byte" band="1"><SimpleSource><SourceFilename relativeToVRT="0">TARGET</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>`,
	`<VRTDataset rasterXSize="20" rasterYSize="20"><VRTRasterBand dataType="Byte" band="1" subClass="VRTRawRasterBand"><SourceFilename>TARGET</SourceFilename></VRTRasterBand></VRTDataset>`,
	`<VRTDataset rasterXSize="20" rasterYSize="20"><VRTRasterBand dataType="Byte" band="1" subClass="VRTDerivedRasterBand"><PixelFunctionLanguage>Python</PixelFunctionLanguage><PixelFunctionCode><![CDATA[import os; os.system("touch /tmp/x")]]></PixelFunctionCode></VRTRasterBand></VRTDataset>`,
	`<OGRVRTDataSource><OGRVRTLayer name="x"><SrcDataSource>TARGET</SrcDataSource></OGRVRTLayer></OGRVRTDataSource>`,
	`<GDAL_WMS><Service name="WMS"><ServerUrl>TARGET</ServerUrl><Layers>x</Layers></Service><DataWindow><UpperLeftX>0</UpperLeftX><UpperLeftY>1</UpperLeftY><LowerRightX>1</LowerRightX><LowerRightY>0</LowerRightY><SizeX>10</SizeX><SizeY>10</SizeY></DataWindow></GDAL_WMS>`,
	`<GDAL_WMTS><GetCapabilitiesUrl>TARGET</GetCapabilitiesUrl></GDAL_WMTS>`,
	`<WCS_GDAL><ServiceURL>TARGET</ServiceURL><CoverageName>x</CoverageName></WCS_GDAL>`,
	`<OGRWFSDataSource><URL>TARGET</URL></OGRWFSDataSource>`,
	`<GDALTileIndexDataset><IndexDataset>TARGET</IndexDataset></GDALTileIndexDataset>`,
	`<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "TARGET">]><kml xmlns="http://www.opengis.net/kml/2.2"><Document><NetworkLink><Link><href>TARGET</href></Link></NetworkLink><name>&e;</name></Document></kml>`,
	`<?xml version="1.0"?><gml:FeatureCollection xmlns:gml="http://www.opengis.net/gml" xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="x TARGET"><gml:featureMember xlink:href="TARGET"/></gml:FeatureCollection>`,
	`<PAMDataset><GeodataXform>TARGET</GeodataXform></PAMDataset>`,
	`{"type":"FeatureCollection","crs":{"type":"link","properties":{"href":"TARGET","type":"proj4"}},"features":[{"type":"Feature","properties":{},"geometry":{"type":"Point","coordinates":[1,2]}}]}`,
	`{"type":"FeatureCollection","crs":{"type":"name","properties":{"name":"TARGET"}},"features":[{"type":"Feature","properties":{"x":"TARGET"},"geometry":{"type":"Point","coordinates":[1,2]}}]}`,
	`{"type":"FeatureCollection","crs":{"type":"name","properties":{"name":"+proj=longlat +nadgrids=TARGET"}},"features":[{"type":"Feature","properties":{},"geometry":{"type":"Point","coordinates":[1,2]}}]}`,
	`{"type":"FeatureCollection","stac_version":"1.0.0","features":[{"type":"Feature","stac_version":"1.0.0","properties":{"proj:epsg":4326},"assets":{"x":{"href":"TARGET"}},"geometry":null}],"links":[{"rel":"next","href":"TARGET"}]}`,
	`{"type":"FeatureCollection","features":[],"links":[{"rel":"next","href":"TARGET"}],"paging":{"next":"TARGET"}}`,
	`{"refs":{".zgroup":"{\"zarr_format\":2}","x/0.0":["TARGET",0,100]}}`,
	`{"type":"tileset","root":"TARGET","services":["TARGET"],"esriFieldType":1,"geometryType":"esriGeometryPoint","features":[]}`,
	`{"type":"Topology","objects":{"x":{"type":"GeometryCollection","geometries":[]}},"arcs":[]}`,
	"TARGET", "PG:dbname=x host=TARGET", "DRIVER=x\nDATA=TARGET\n", "id,geom\n1,TARGET\n",
	"NCOLS 4\nNROWS 4\nXLLCORNER 0\nYLLCORNER 0\nCELLSIZE 1\nDATAFILE TARGET\n",
}

func (m *Maker) reference(rng *rand.Rand) (string, []byte) {
	text := strings.ReplaceAll(pick(rng, references), "TARGET", pick(rng, Targets))
	prefix := pick(rng, []string{"", "", "", "\xef\xbb\xbf", "\n\n  ", "<?xml version=\"1.0\"?>\n", "II*\x00"})
	return "reference" + pick(rng, extensions), []byte(prefix + text)
}

// text is JSON or XML that is deep, long or wrong.
func (m *Maker) text(rng *rand.Rand) (string, []byte) {
	n := 1 << (4 + rng.IntN(14))
	feature := func(geometry string) string {
		return `{"type":"FeatureCollection","features":[{"type":"Feature","properties":{},"geometry":` + geometry + `}]}`
	}
	repeat := strings.Repeat
	return "text.geojson", []byte(pick(rng, []string{
		repeat("[", n), repeat(`{"a":`, n), feature(`{"type":"Polygon","coordinates":` + repeat("[", n) + repeat("]", n) + "}"),
		feature(repeat(`{"type":"GeometryCollection","geometries":[`, n) + repeat("]}", n)),
		feature(`{"type":"Point","coordinates":[1e999,-1e999]}`), feature(`{"type":"Point","coordinates":[NaN,Infinity]}`),
		feature(`{"type":"Point","coordinates":["1",null]}`), feature(`{"type":"LineString","coordinates":[` + repeat("[1,2],", n) + "[1,2]]}"),
		feature(`{"type":"MultiPoint","coordinates":[[` + repeat("1,", n) + "1]]}"),
		`{"type":"FeatureCollection","features":[` + repeat(`{"type":"Feature","properties":{},"geometry":null},`, n) + "]}",
		`{"type":"FeatureCollection","features":[{"type":"Feature","properties":{` + fields(n/8) + `},"geometry":{"type":"Point","coordinates":[1,2]}}]}`,
		feature(`{"type":"Point","coordinates":[1,2]}`) + repeat(" ", n), feature(`{"type":"Point","coordinates":[1,2]}`) + "\x00",
		`{"type":"FeatureCollection","name":"` + repeat(`\u0000`, n) + `","features":[]}`, `{"type":"FeatureCollection","features":[],"features":[]}`,
		"<" + repeat("a><", n), `<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "` + repeat("b", 99) + `"><!ENTITY c "` + repeat("&a;", n) + `">]><x>&c;</x>`,
	}))
}

func fields(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"f` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676%26)) + `":` + []string{"1", `"x"`, "null", "[1]", "{}"}[i%5])
	}
	return b.String()
}

func zipped(name string, content []byte) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, _ := w.Create(name)
	_, _ = f.Write(content)
	_ = w.Close()
	return b.Bytes()
}
