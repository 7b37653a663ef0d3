package listing

import (
	"compress/gzip"
	"crypto/md5"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"catalogd/internal/catalog"
)

// manifest is the manifest.json of an S3 Inventory report:
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-inventory-location.html
type manifest struct {
	SourceBucket      string `json:"sourceBucket"`
	DestinationBucket string `json:"destinationBucket"`
	FileFormat        string `json:"fileFormat"`
	FileSchema        string `json:"fileSchema"`
	Files             []dataFile
}

// dataFile is a gzipped CSV file, without a line of names.
type dataFile struct {
	Key  string `json:"key"`
	Size int64  `json:"size"`
	MD5  string `json:"MD5checksum"`
}

// columns are where in a row a value is; -1 for nowhere.
type columns struct {
	count                                                     int
	bucket, key, size, modified, etag, isLatest, isDeleteMark int
}

// report is one that is being read.
type report struct {
	columns
	bucket, prefix string
}

// inventory reads the manifest, and looks for the data files.
func (opts Options) inventory(r io.Reader, name string) (source, error) {
	var m manifest
	if err := json.NewDecoder(r).Decode(&m); err != nil {
		return nil, plain(broken(err))
	}
	if m.FileFormat != "CSV" {
		return nil, fmt.Errorf("an inventory in %q cannot be read: have it made in CSV", m.FileFormat)
	}
	if opts.Bucket != "" && opts.Bucket != m.SourceBucket {
		return nil, fmt.Errorf("an inventory of bucket %q, and the store is in %q: give that one's", m.SourceBucket, opts.Bucket)
	}
	if m.Files == nil {
		return nil, errors.New(`the manifest has no "files": is it whole?`)
	}
	cols, err := columnsOf(m.FileSchema)
	if err != nil {
		return nil, err
	}
	rep := report{columns: cols, bucket: m.SourceBucket, prefix: opts.Prefix}
	if rep.prefix != "" {
		rep.prefix = strings.TrimSuffix(rep.prefix, "/") + "/"
	}
	found := make([]string, len(m.Files))
	for i, file := range m.Files {
		if found[i], err = file.find(name); err != nil {
			return nil, fmt.Errorf("%w: copy it there from %s", err, m.DestinationBucket)
		}
	}
	return func(yield func(catalog.Object) error) error {
		for i, file := range m.Files {
			if err := rep.readFile(found[i], file, yield); err != nil {
				return fmt.Errorf("%s: %w", found[i], err)
			}
		}
		return nil
	}, nil
}

func columnsOf(schema string) (columns, error) {
	names := strings.Split(schema, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	at := func(name string) int { return slices.Index(names, name) }
	c := columns{len(names), at("Bucket"), at("Key"), at("Size"), at("LastModifiedDate"), at("ETag"), at("IsLatest"), at("IsDeleteMarker")}
	if c.key < 0 || c.size < 0 {
		return columns{}, fmt.Errorf("an inventory of %q: have it made with Key and Size", schema)
	}
	return c, nil
}

// find looks for the file beside the manifest, and where its key leads from a directory
// above: whole, or less what was cut off when the files were copied.
func (f dataFile) find(manifest string) (string, error) {
	key := strings.TrimPrefix(path.Clean("/"+f.Key), "/")
	abs, err := filepath.Abs(manifest)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(abs)
	beside := filepath.Join(dir, path.Base(key))
	if regular(beside) {
		return beside, nil
	}
	for range 1 + strings.Count(key, "/") {
		for rest, more := key, true; more; _, rest, more = strings.Cut(rest, "/") {
			if name := filepath.Join(dir, rest); regular(name) {
				return name, nil
			}
		}
		dir = filepath.Dir(dir)
	}
	return "", fmt.Errorf("%w: data file %s is not where its key leads, and not beside the manifest", fs.ErrNotExist, f.Key)
}

func regular(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// readFile reads a data file, and checks that it is the manifest's.
func (rep *report) readFile(name string, file dataFile, yield func(catalog.Object) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if file.Size != 0 && info.Size() != file.Size {
		return fmt.Errorf("%w (%d bytes, and the manifest says %d)", ErrIncomplete, info.Size(), file.Size)
	}
	sum := md5.New()
	tee := io.TeeReader(f, sum)
	if err := rep.readRows(tee, yield); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); file.MD5 != "" && !strings.EqualFold(got, file.MD5) {
		return fmt.Errorf("has MD5 %s, and the manifest says %s: copy it again", got, file.MD5)
	}
	return nil
}

func (rep *report) readRows(r io.Reader, yield func(catalog.Object) error) error {
	unzipped, err := gzip.NewReader(r)
	if err != nil {
		return broken(err)
	}
	rows := csv.NewReader(unzipped)
	rows.FieldsPerRecord = rep.count
	rows.ReuseRecord = true
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return broken(err) // names the line
		}
		o, wanted, err := rep.object(row)
		if err == nil && wanted {
			err = yield(o)
		}
		if err != nil {
			line, _ := rows.FieldPos(0)
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// object is that of a row, if it is the store's: there now, and below its prefix.
func (rep *report) object(row []string) (o catalog.Object, wanted bool, err error) {
	value := func(column int) string {
		if column < 0 {
			return ""
		}
		return row[column]
	}
	if bucket := value(rep.columns.bucket); rep.columns.bucket >= 0 && bucket != rep.bucket {
		return o, false, fmt.Errorf("an object of bucket %q in an inventory of %q", bucket, rep.bucket)
	}
	key, err := url.QueryUnescape(value(rep.key))
	if err != nil {
		return o, false, fmt.Errorf("key %q: %w", value(rep.key), err)
	}
	key, below := strings.CutPrefix(key, rep.prefix)
	if !below || key == "" || strings.EqualFold(value(rep.isLatest), "false") || strings.EqualFold(value(rep.isDeleteMark), "true") {
		return o, false, nil
	}
	o.Key, o.ETag = key, strings.Trim(value(rep.etag), `"`)
	if o.SizeBytes, err = strconv.ParseInt(value(rep.size), 10, 64); err != nil {
		return o, false, fmt.Errorf("%q has size %q, which is no number", key, value(rep.size))
	}
	if o.Modified, err = parseTime(value(rep.modified)); err != nil {
		return o, false, fmt.Errorf("%q: LastModifiedDate: %w", key, err)
	}
	return o, true, nil
}
