// Package oracle holds footprints against those of others: its tests have GDAL in Python
// make real rasters and say what lies in them, the real catalogd-probe find their
// footprints, and PostGIS judge these. It has no code of its own.
package oracle
