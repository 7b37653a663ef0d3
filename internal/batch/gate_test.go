package batch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"catalogd/internal/batch"
	"catalogd/internal/batch/batchtest"
	"catalogd/internal/catalog"
	"catalogd/internal/postgres"
	"catalogd/internal/s3gateway"
	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/storage/s3"
	"catalogd/internal/storage/storagetest"
	"catalogd/internal/testdb"
	"catalogd/internal/upsert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// place is a store, and what a test does there behind the server's back.
type place struct {
	storage.Store
	root   string
	put    func(key string, content []byte)
	remove func(key string)
	// leave takes the store away, with all that is in it.
	leave func()
}

var places = map[string]func(t testing.TB) place{"posix": inDirectory, "s3": inBucket}

func inDirectory(t testing.TB) place {
	root := filepath.Join(t.TempDir(), "store")
	must(t, os.Mkdir(root, 0o755))
	store, err := posix.Open(t.Context(), root, posix.Options{Init: true})
	must(t, err)
	return place{
		Store: store, root: "file://" + root,
		put: func(key string, content []byte) {
			path := filepath.Join(root, key)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
		},
		remove: func(key string) { must(t, os.Remove(filepath.Join(root, key))) },
		leave:  func() { must(t, os.Rename(root, root+".aside"), os.Mkdir(root, 0o755)) },
	}
}

func inBucket(t testing.TB) place {
	g := gatewaytest.Start(t)
	name, prefix := gatewaytest.Bucket(t, g), "some/prefix/"
	store, err := s3.Open(t.Context(), s3.Config{
		URL: "s3://" + name + "/" + prefix, Endpoint: g.Endpoint, Region: s3gateway.Region, Init: true,
		Credentials: credentials.NewStaticCredentialsProvider(g.AccessKey, g.SecretKey, ""),
	})
	must(t, err)
	client := g.Client()
	remove := func(key string) {
		_, err := client.DeleteObject(context.WithoutCancel(t.Context()), &awss3.DeleteObjectInput{Bucket: &name, Key: &key})
		must(t, err)
	}
	return place{
		Store: store, root: "s3://" + name + "/" + prefix,
		put: func(key string, content []byte) {
			_, err := client.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &name, Key: aws.String(prefix + key), Body: bytes.NewReader(content)})
			must(t, err)
		},
		remove: func(key string) { remove(prefix + key) },
		leave: func() {
			listed, err := client.ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: &name})
			must(t, err)
			for _, o := range listed.Contents {
				remove(*o.Key)
			}
			_, err = client.DeleteBucket(t.Context(), &awss3.DeleteBucketInput{Bucket: &name})
			must(t, err)
		},
	}
}

// queue takes jobs and has nobody do them: here judges are called.
type queue struct{ told []uuid.UUID }

func (q *queue) Part(context.Context, pgx.Tx, int64, int) error { return nil }

func (q *queue) Apply(context.Context, pgx.Tx, int64) error { return nil }

func (q *queue) Judge(context.Context, pgx.Tx, uuid.UUID) error { return nil }

func (q *queue) Notify(ctx context.Context, tx pgx.Tx, gate uuid.UUID) error {
	q.told = append(q.told, gate)
	_, err := tx.Exec(ctx, `UPDATE catalog.gates SET notified_at = clock_timestamp() WHERE gate_id = $1`, gate)
	return err
}

type world struct {
	t      testing.TB
	url    string
	db     *postgres.DB
	sql    *pgxpool.Pool
	stores upsert.Stores
	queue  *queue
	judge  *batch.Judge
}

func newWorld(t testing.TB, in ...place) *world {
	t.Helper()
	w := &world{t: t, url: testdb.New(t), stores: upsert.Stores{}, queue: &queue{}}
	separator := "?"
	if strings.Contains(w.url, "?") {
		separator = "&"
	}
	var err error
	w.db, err = postgres.Open(t.Context(), w.url+separator+"role=catalog_server")
	must(t, err)
	t.Cleanup(w.db.Close)
	w.sql, err = pgxpool.New(t.Context(), w.url)
	must(t, err)
	t.Cleanup(w.sql.Close)
	for _, p := range in {
		must(t, w.db.UseStore(t.Context(), postgres.Store{ID: p.ID(), Root: p.root, Location: p.root + "/", Href: "/data/"}))
		w.stores[p.ID()] = p.Store
	}
	w.db.UseQueue(w.queue)
	w.judge = &batch.Judge{Ledger: w.db, Stores: w.stores, Publisher: batchtest.NothingWaits{}}
	return w
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.sql.Exec(w.t.Context(), sql, args...)
	must(w.t, err)
}

// gate has a batch judged here and now.
func (w *world) gate(name string, limits catalog.GateLimits) catalog.Gate {
	w.t.Helper()
	id := batchtest.Ask(w.t, w.db, name, limits)
	must(w.t, w.judge.Judge(w.t.Context(), id))
	gate, err := w.judge.Gate(w.t.Context(), name, id)
	must(w.t, err)
	if gate.State.Ended() != (gate.EndedAt != nil) || gate.StartedAt == nil {
		w.t.Errorf("%+v", gate)
	}
	return gate
}

func (w *world) want(gate catalog.Gate, state catalog.GateState, reasons ...catalog.GateReason) {
	w.t.Helper()
	if gate.State != state || !slices.Equal(gate.Reasons, reasons) {
		w.t.Errorf("%s %v (%s %s), want %s %v: %+v", gate.State, gate.Reasons, gate.ErrorCode, gate.ErrorMessage, state, reasons, gate.Figures)
	}
}

func none(frac float64) catalog.GateLimits {
	return catalog.GateLimits{MaxMissingFrac: frac, Storage: catalog.GateNone}
}

func list(frac float64) catalog.GateLimits {
	return catalog.GateLimits{MaxMissingFrac: frac, Storage: catalog.GateList}
}

func sample(frac float64, size int64) catalog.GateLimits {
	return catalog.GateLimits{MaxMissingFrac: frac, Storage: catalog.GateSample, SampleSize: size}
}

// The article's batch: 6,000 tiles, of which 3 may miss, and 600 may not.
func TestSixThousand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory(t))
	store := w.storeID()
	batchtest.Write(t, w.sql, batchtest.Batch{Name: "good", Collection: "landcover", StoreID: store, Done: 5997, Quarantined: 1, Retrying: 1, Untried: 1})
	gate := w.gate("good", none(0.002))
	w.want(gate, catalog.GatePassed)
	if f := gate.Figures; f != (catalog.GateFigures{
		BatchCounts: catalog.BatchCounts{Expected: 6000, Done: 5997, Quarantined: 1, Retrying: 1, Pending: 1},
		Missing:     3, MissingFrac: 0.0005, Outputs: 5997,
	}) {
		t.Errorf("%+v", f)
	}
	if len(gate.Offenders) != 3 || gate.Offenders[0].Status != catalog.UnitQuarantined || gate.Offenders[0].Reason != "no_crs" || gate.Offenders[0].TileID != "good/0005998" {
		t.Errorf("%+v", gate.Offenders)
	}
	w.want(w.gate("good", none(0.0004)), catalog.GateFailed, catalog.GateTooManyMissing)

	batchtest.Write(t, w.sql, batchtest.Batch{Name: "bad", Collection: "landcover", StoreID: store, Done: 5400, Untried: 500, Running: 100})
	w.want(w.gate("bad", none(0.002)), catalog.GateFailed, catalog.GateTooManyMissing)

	batchtest.Write(t, w.sql, batchtest.Batch{Name: "lost", Collection: "landcover", StoreID: store, Done: 4799, Lost: 1, Untried: 1200})
	gate = w.gate("lost", none(1))
	w.want(gate, catalog.GateFailed, catalog.GateDisagreement)
	if len(gate.Offenders) != batch.MaxOffenders || gate.Offenders[0].Status != catalog.UnitLost || gate.Offenders[0].Reason != "object_missing" {
		t.Errorf("%d offenders, %+v", len(gate.Offenders), gate.Offenders[:1])
	}
}

func (w *world) storeID() string {
	for id := range w.stores {
		return id
	}
	return ""
}

// write writes a batch with the objects of its outputs.
func (w *world) write(p place, b batchtest.Batch) (objects []string) {
	w.t.Helper()
	b.StoreID, b.Size = p.ID(), 7
	objects = batchtest.Write(w.t, w.sql, b)
	for _, key := range objects {
		p.put(key, []byte("content"))
	}
	return objects
}

func onBoth(t *testing.T, test func(t *testing.T, p place)) {
	for name, open := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// What the store has beside the batch's outputs is nothing to its gate.
func TestStrayObjects(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, p place) {
		w := newWorld(t, p)
		objects := w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 40, Untried: 1})
		w.write(p, batchtest.Batch{Name: "another", Collection: "dem", Done: 5})
		for _, key := range []string{"dem/!first", "dem/b/0000020", "dem/b-/x", "dem/b/0000020.x/y", objects[7] + "x", "dem/~last", "dem2/b/0000001", "de/z"} {
			p.put(key, []byte("stray"))
		}
		gate := w.gate("b", list(0.1))
		w.want(gate, catalog.GatePassed)
		if gate.Figures.LookedAt != 40 || gate.Figures.Outputs != 40 {
			t.Errorf("%+v", gate.Figures)
		}
		gate = w.gate("b", sample(0.1, 10))
		w.want(gate, catalog.GatePassed)
		if gate.Figures.LookedAt != 10 || gate.Figures.Outputs != 10 {
			t.Errorf("%+v", gate.Figures)
		}
		if gate = w.gate("b", sample(0.1, 1000)); gate.Figures.LookedAt != 40 {
			t.Errorf("%+v", gate.Figures)
		}
	})
}

// An object that is deleted by hand, or is another by its size, fails the batch whatever
// may be missing, and is told of first.
func TestDeletedByHand(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, p place) {
		w := newWorld(t, p)
		objects := w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 30, Untried: 2})
		p.remove(objects[11])
		p.remove(objects[29])
		p.put(objects[3], []byte("longer than it was"))
		for _, limits := range []catalog.GateLimits{list(1), sample(1, 1000)} {
			gate := w.gate("b", limits)
			w.want(gate, catalog.GateFailed, catalog.GateDisagreement)
			if f := gate.Figures; f.Lost != 3 || f.Done != 27 || f.Missing != 5 || f.LookedAt != 30 || f.Outputs != 27 {
				t.Errorf("%+v", f)
			}
			var told []string
			for _, o := range gate.Offenders {
				told = append(told, o.TileID+" "+string(o.Status)+" "+o.Reason)
			}
			want := []string{"b/0000004 lost size_mismatch", "b/0000012 lost object_missing", "b/0000030 lost object_missing", "b/0000031 pending ", "b/0000032 pending "}
			slices.Sort(told[:min(3, len(told))])
			if !slices.Equal(told, want) {
				t.Errorf("%q", told)
			}
		}
		// A gate that looks at nothing sees nothing.
		w.want(w.gate("b", none(1)), catalog.GatePassed)
	})
}

// A store that is away says nothing of the batch.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, p place) {
		w := newWorld(t, p)
		w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 12})
		p.leave()
		for _, limits := range []catalog.GateLimits{list(0), sample(0, 5)} {
			gate := w.gate("b", limits)
			w.want(gate, catalog.GateError)
			if gate.ErrorCode != catalog.CodeStoreUnavailable || gate.ErrorMessage == "" || len(gate.Offenders) != 0 {
				t.Errorf("%+v", gate)
			}
		}
		delete(w.stores, p.ID())
		gate := w.gate("b", list(0))
		w.want(gate, catalog.GateError)
		if gate.ErrorCode != catalog.CodeStoreUnavailable {
			t.Errorf("%+v", gate)
		}
		if len(w.queue.told) != 0 {
			t.Errorf("told of %d gates that judged nothing", len(w.queue.told))
		}
	})
}

// Nor does one whose sentinel is gone, though every object is there.
func TestNoSentinel(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, p place) {
		w := newWorld(t, p)
		w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 12})
		p.remove(storage.SentinelKey)
		gate := w.gate("b", list(0))
		w.want(gate, catalog.GateError)
		if gate.ErrorCode != catalog.CodeStoreUnavailable {
			t.Errorf("%+v", gate)
		}
	})
}

// The outputs of one batch may lie in several stores.
func TestSeveralStores(t *testing.T) {
	t.Parallel()
	here, there := inDirectory(t), inDirectory(t)
	w := newWorld(t, here, there)
	objects := w.write(here, batchtest.Batch{Name: "b", Collection: "dem", Done: 20})
	for _, key := range objects[5:9] {
		here.remove(key)
		there.put(key, []byte("content"))
	}
	w.exec(`UPDATE catalog.tiles SET store_id = $1 WHERE object_key = ANY($2)`, there.ID(), objects[5:9])
	gate := w.gate("b", list(0))
	w.want(gate, catalog.GatePassed)
	if gate.Figures.Outputs != 20 {
		t.Errorf("%+v", gate.Figures)
	}
	there.remove(objects[5])
	here.put(objects[5], []byte("content")) // there, where its row is not
	w.want(w.gate("b", list(1)), catalog.GateFailed, catalog.GateDisagreement)
}

// More outputs than are fetched, or confirmed, at once.
func TestPages(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	objects := w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 5003})
	w.want(w.gate("b", list(0)), catalog.GatePassed)
	for _, key := range objects[4000:4600] {
		p.remove(key)
	}
	gate := w.gate("b", list(1))
	w.want(gate, catalog.GateFailed, catalog.GateDisagreement)
	if f := gate.Figures; f.Lost != 600 || f.Outputs != 4403 || len(gate.Offenders) != 600 {
		t.Errorf("%+v, %d offenders", f, len(gate.Offenders))
	}
}

// Two rows that name one object are a disagreement. The schema lets nobody write them.
func TestTwoRowsOneObject(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	objects := w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 9})
	w.exec(`ALTER TABLE catalog.tiles DROP CONSTRAINT tiles_object_key_key`)
	w.exec(`UPDATE catalog.tiles SET object_key = $1 WHERE object_key = $2`, objects[3], objects[4])
	gate := w.gate("b", list(1))
	w.want(gate, catalog.GateFailed, catalog.GateDisagreement)
	if f := gate.Figures; f.Done != 9 || f.Outputs != 8 || f.Lost != 0 {
		t.Errorf("%+v", f)
	}
}

// A listing that breaks off, or is not in order, is no reason to call anything lost; nor
// is an object that is only not listed.
func TestListingIsNotTrusted(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 9})
	for name, list := range map[string]func(storagetest.Listing) storagetest.Listing{
		"breaks off":     storagetest.Torn(4, errors.New("connection reset")),
		"is in disorder": storagetest.Swapped(2),
	} {
		w.stores[p.ID()] = &storagetest.Shim{Store: p.Store, OnList: list}
		gate := w.gate("b", catalog.GateLimits{Storage: catalog.GateList})
		if gate.State != catalog.GateError || gate.ErrorCode != catalog.CodeStoreUnavailable {
			t.Errorf("%s: %+v", name, gate)
		}
	}
	w.stores[p.ID()] = &storagetest.Shim{Store: p.Store, OnList: storagetest.Without(0, 3)}
	w.want(w.gate("b", list(0)), catalog.GatePassed)
}

// An object that is gone because its row was replaced meanwhile is not lost; nor is one
// whose unit is not done any more, though that is missing.
func TestReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	objects := w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 9})
	p.remove(objects[4])
	p.remove(objects[6])
	w.stores[p.ID()] = &storagetest.Shim{Store: p.Store, OnStat: func(ctx context.Context, key string) (catalog.Object, error) {
		o, err := p.Stat(ctx, key)
		switch {
		case err == nil:
		case key == objects[4]:
			p.put("dem/anew.tif", []byte("anew"))
			w.exec(`UPDATE catalog.tiles SET attempt_id = $1, object_key = 'dem/anew.tif', size_bytes = 4 WHERE object_key = $2`, uuid.New(), key)
		case key == objects[6]:
			w.exec(`UPDATE catalog.tiles SET withdrawn_at = now() WHERE object_key = $1`, key)
		}
		return o, err
	}}
	gate := w.gate("b", list(0.2))
	w.want(gate, catalog.GatePassed)
	if f := gate.Figures; f.Done != 8 || f.Outputs != 8 || f.Quarantined != 1 || f.Lost != 0 || f.LookedAt != 9 {
		t.Errorf("%+v", f)
	}
}

func TestEmptyAndUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inDirectory(t))
	batchtest.Write(t, w.sql, batchtest.Batch{Name: "b", Collection: "dem", StoreID: w.storeID()})
	w.want(w.gate("b", list(1)), catalog.GateFailed, catalog.GateEmpty)
	if _, err := w.judge.Run(t.Context(), "x", list(0), "me", 0); !catalog.IsCode(err, catalog.CodeUnknownBatch) {
		t.Error(err)
	}
	if _, err := w.judge.Gate(t.Context(), "x", uuid.New()); !catalog.IsCode(err, catalog.CodeUnknownBatch) {
		t.Error(err)
	}
	if _, err := w.judge.Gate(t.Context(), "b", uuid.New()); !catalog.IsCode(err, catalog.CodeNotFound) {
		t.Error(err)
	}
	// Nobody judges here: the gate as it stands, after as long as was asked for.
	begun := time.Now()
	gate, err := w.judge.Run(t.Context(), "b", list(0.5), "me", 300*time.Millisecond)
	if took := time.Since(begun); err != nil || gate.State != catalog.GateQueued || gate.AskedBy != "me" || gate.MaxMissingFrac != 0.5 || took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("%+v %v after %v", gate, err, took)
	}
}

// One judge at a time, and none for a gate that has ended.
func TestJudgedOnce(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 3})
	id := batchtest.Ask(t, w.db, "b", none(0))
	sitting, err := w.db.TakeGate(t.Context(), id)
	must(t, err)
	must(t, w.judge.Judge(t.Context(), id))
	if gate, err := w.db.Gate(t.Context(), "b", id); err != nil || gate.State != catalog.GateRunning {
		t.Fatalf("%+v %v", gate, err)
	}
	sitting.Close()
	must(t, w.judge.Judge(t.Context(), id))
	first, err := w.db.Gate(t.Context(), "b", id)
	must(t, err)
	w.want(first, catalog.GatePassed)
	w.exec(`DELETE FROM catalog.batch_units`)
	must(t, w.judge.Judge(t.Context(), id))
	must(t, w.db.EndGate(t.Context(), catalog.Gate{ID: id, BatchID: first.BatchID, State: catalog.GateFailed}))
	again, err := w.db.Gate(t.Context(), "b", id)
	if err != nil || again.State != catalog.GatePassed || !again.EndedAt.Equal(*first.EndedAt) || again.Figures != first.Figures {
		t.Errorf("%+v %v", again, err)
	}
}

// publisher counts, and fails as long as it is told to.
type publisher struct {
	err       error
	published []string
}

func (p *publisher) PublishBatch(_ context.Context, name, who, why string) (upsert.BatchPublished, error) {
	p.published = append(p.published, fmt.Sprint(name, " ", who))
	return upsert.BatchPublished{Published: 3, Moved: 2}, p.err
}

// What passes is published before the gate has passed; what fails is not. That nothing
// waits, where outputs become current one by one, is no error.
func TestPublishes(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 3, Untried: 1})
	pub := &publisher{}
	w.want(w.gate("b", list(0.5)), catalog.GatePassed)
	w.judge.Publisher = pub
	w.exec(`UPDATE catalog.collections SET publish = 'on_gate'`)
	w.want(w.gate("b", list(0)), catalog.GateFailed, catalog.GateTooManyMissing)
	if len(pub.published) != 0 {
		t.Fatalf("published %v", pub.published)
	}
	id := batchtest.Ask(t, w.db, "b", list(0.5))
	pub.err = catalog.Errorf(catalog.CodeDatabaseUnavailable, "the database does not answer")
	if err := w.judge.Judge(t.Context(), id); !errors.Is(err, pub.err) {
		t.Fatal(err)
	}
	if gate, err := w.db.Gate(t.Context(), "b", id); err != nil || gate.State != catalog.GateRunning {
		t.Fatalf("%+v %v", gate, err)
	}
	pub.err = nil
	must(t, w.judge.Judge(t.Context(), id))
	gate, err := w.db.Gate(t.Context(), "b", id)
	must(t, err)
	w.want(gate, catalog.GatePassed)
	if gate.Figures.Published != 2 || !slices.Equal(pub.published, []string{"b test", "b test"}) {
		t.Errorf("%+v, published %v", gate.Figures, pub.published)
	}
	// What waits since the collection published on gates is published all the same.
	w.exec(`UPDATE catalog.collections SET publish = 'on_register'`)
	if gate := w.gate("b", list(0.5)); gate.Figures.Published != 2 {
		t.Errorf("%+v", gate.Figures)
	}
}

// Whoever is stopped decides nothing; a gate that takes too long has not failed.
func TestCutOff(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 3})
	w.stores[p.ID()] = &storagetest.Shim{Store: p.Store, OnStat: func(ctx context.Context, _ string) (catalog.Object, error) {
		<-ctx.Done()
		return catalog.Object{}, ctx.Err()
	}}
	id := batchtest.Ask(t, w.db, "b", sample(0, 3))
	stopped, stop := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, stop)
	if err := w.judge.Judge(stopped, id); err == nil {
		t.Error("a judge that was stopped is content")
	}
	if gate, err := w.db.Gate(t.Context(), "b", id); err != nil || gate.State != catalog.GateRunning {
		t.Errorf("%+v %v", gate, err)
	}
	late, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	must(t, w.judge.Judge(late, id))
	gate, err := w.db.Gate(t.Context(), "b", id)
	must(t, err)
	w.want(gate, catalog.GateError)
	if gate.ErrorCode != catalog.CodeOutcomeUnknown {
		t.Errorf("%+v", gate)
	}
}

// Who is told, and of what: of a verdict that is the batch's first, or another than its
// last.
func TestTold(t *testing.T) {
	t.Parallel()
	p := inDirectory(t)
	w := newWorld(t, p)
	w.write(p, batchtest.Batch{Name: "b", Collection: "dem", Done: 3, Untried: 1})
	for _, c := range []struct {
		limits catalog.GateLimits
		away   bool
		told   int
	}{
		{list(0), false, 1}, {list(0), false, 1}, {list(0), true, 1}, {list(0), false, 1},
		{list(0.5), false, 2}, {none(0.5), false, 2}, {list(0), true, 2}, {list(0.5), false, 2}, {list(0), false, 3},
	} {
		if c.away {
			delete(w.stores, p.ID())
		} else {
			w.stores[p.ID()] = p.Store
		}
		gate := w.gate("b", c.limits)
		if len(w.queue.told) != c.told {
			t.Fatalf("%s: told of %d", gate.State, len(w.queue.told))
		}
	}
}
