package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"catalogd/internal/catalog"
)

// totalsTTL is how long the counts are kept between scrapes.
const totalsTTL = 10 * time.Second

type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
}

func newMetrics(cfg Config) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "catalogd_http_request_duration_seconds",
			Help:    "Time to answer, by operation of the contract and status.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"operation", "status"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "catalogd_build_info", Help: "1, labelled with the version.",
		ConstLabels: prometheus.Labels{"version": cfg.Version},
	})
	build.Set(1)
	m.registry.MustRegister(m.requests, build, &totalsCollector{catalogue: cfg.Catalogue},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observe(operation string, status int, took time.Duration) {
	m.requests.WithLabelValues(operation, strconv.Itoa(status)).Observe(took.Seconds())
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// totalsCollector counts from the records when it is asked.
type totalsCollector struct {
	catalogue Catalogue

	mu     sync.Mutex
	totals catalog.Totals
	up     float64
	read   time.Time
}

var (
	upDesc       = prometheus.NewDesc("catalogd_database_up", "Whether the records could be counted.", nil, nil)
	tilesDesc    = prometheus.NewDesc("catalogd_tiles", "Outputs; may be an estimate.", nil, nil)
	slotsDesc    = prometheus.NewDesc("catalogd_slots", "Places; may be an estimate.", nil, nil)
	attemptsDesc = prometheus.NewDesc("catalogd_attempts", "Attempts that hold a unit now.", []string{"state"}, nil)
	failedDesc   = prometheus.NewDesc("catalogd_failed_units", "Units that failed since they last succeeded or were released: quarantined, or retried; may be an estimate.", []string{"next"}, nil)
	batchDesc    = prometheus.NewDesc("catalogd_batch_units", "Units of the newest batches, by how they stood when they were last counted.", []string{"batch", "collection", "status"}, nil)
	countedDesc  = prometheus.NewDesc("catalogd_batch_counted_timestamp", "When a batch was last counted, seconds since 1970.", []string{"batch", "collection"}, nil)
	lostDesc     = prometheus.NewDesc("catalogd_lost_tiles", "Outputs whose object was found missing.", nil, nil)
	gateDesc     = prometheus.NewDesc("catalogd_batch_gate_error", "1 where a batch's last gate could not be judged.", []string{"batch", "collection"}, nil)

	completeDesc     = storeDesc("catalogd_reconcile_last_complete_timestamp_seconds", "When the last complete reconciliation of the whole store ended, seconds since 1970; 0 for never.")
	tookDesc         = storeDesc("catalogd_reconcile_last_duration_seconds", "How long that took.")
	incompleteDesc   = storeDesc("catalogd_reconcile_last_incomplete", "1 where the last reconciliation of the whole store did not see all of it.")
	findingsDesc     = storeDesc("catalogd_findings", "Findings that are open.", "kind")
	findingBytesDesc = storeDesc("catalogd_finding_bytes", "Size of the objects of findings that are open; of lost ones, what it should be.", "kind")
	trashDesc        = storeDesc("catalogd_trash_objects", "Objects in the trash.")
	trashBytesDesc   = storeDesc("catalogd_trash_bytes", "Their size.")
	lapBeganDesc     = storeDesc("catalogd_scrub_lap_began_timestamp_seconds", "When the present round of reading the store's checksums again began, seconds since 1970; 0 for never.")
	lapEndedDesc     = storeDesc("catalogd_scrub_lap_ended_timestamp_seconds", "When the last round ended; 0 for never.")
	scrubRanDesc     = storeDesc("catalogd_scrub_last_run_timestamp_seconds", "When a scrub last ran; 0 for never.")
	verifiedDesc     = storeDesc("catalogd_scrub_verified_total", "Outputs whose checksum was read again.")
	scrubBytesDesc   = storeDesc("catalogd_scrub_read_bytes_total", "Bytes that were read for that.")
	badDesc          = storeDesc("catalogd_scrub_bad_total", "Outputs whose checksum was not that of their row.")
)

func storeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"store"}, labels...), nil)
}

func (c *totalsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upDesc, tilesDesc, slotsDesc, attemptsDesc, lostDesc, failedDesc, batchDesc, countedDesc, gateDesc,
		completeDesc, tookDesc, incompleteDesc, findingsDesc, findingBytesDesc, trashDesc, trashBytesDesc, lapBeganDesc, lapEndedDesc, scrubRanDesc,
		verifiedDesc, scrubBytesDesc, badDesc} {
		ch <- d
	}
}

func (c *totalsCollector) Collect(ch chan<- prometheus.Metric) {
	totals, up := c.get()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(upDesc, up)
	if up == 0 {
		return
	}
	gauge(tilesDesc, float64(totals.Tiles))
	gauge(slotsDesc, float64(totals.Slots))
	gauge(attemptsDesc, float64(totals.OpenAttempts), string(catalog.AttemptOpen))
	gauge(attemptsDesc, float64(totals.PromotingAttempts), string(catalog.AttemptPromoting))
	gauge(lostDesc, float64(totals.LostTiles))
	gauge(failedDesc, float64(totals.QuarantinedUnits), string(FailedNextQuarantined))
	gauge(failedDesc, float64(totals.RetryingUnits), string(FailedNextRetry))
	for _, b := range totals.Batches {
		for status, units := range map[catalog.UnitStatus]int64{
			catalog.UnitDone: b.Counts.Done, catalog.UnitRunning: b.Counts.Running, catalog.UnitRetrying: b.Counts.Retrying,
			catalog.UnitQuarantined: b.Counts.Quarantined, catalog.UnitLost: b.Counts.Lost, catalog.UnitPending: b.Counts.Pending,
		} {
			gauge(batchDesc, float64(units), b.Name, b.Collection, string(status))
		}
		gauge(countedDesc, float64(b.CountedAt.UnixMilli())/1000, b.Name, b.Collection)
		gauge(gateDesc, flag(b.GateError), b.Name, b.Collection)
	}
	for _, s := range totals.Stores {
		total := func(d *prometheus.Desc, v int64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), s.Store)
		}
		gauge(completeDesc, unixSeconds(s.CompleteAt), s.Store)
		gauge(tookDesc, s.CompleteTook.Seconds(), s.Store)
		gauge(incompleteDesc, flag(s.Incomplete), s.Store)
		for _, f := range s.Findings {
			gauge(findingsDesc, float64(f.Objects), s.Store, string(f.Kind))
			gauge(findingBytesDesc, float64(f.Bytes), s.Store, string(f.Kind))
		}
		gauge(trashDesc, float64(s.TrashObjects), s.Store)
		gauge(trashBytesDesc, float64(s.TrashBytes), s.Store)
		gauge(lapBeganDesc, unixSeconds(&s.Scrub.LapBegan), s.Store)
		gauge(lapEndedDesc, unixSeconds(s.Scrub.LapEnded), s.Store)
		gauge(scrubRanDesc, unixSeconds(s.Scrub.RanAt), s.Store)
		total(verifiedDesc, s.Scrub.Verified)
		total(scrubBytesDesc, s.Scrub.Bytes)
		total(badDesc, s.Scrub.Bad)
	}
}

// unixSeconds are since 1970; 0 for never.
func unixSeconds(at *time.Time) float64 {
	if at == nil || at.IsZero() {
		return 0
	}
	return float64(at.UnixMilli()) / 1000
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// get counts at most once in totalsTTL, whether that works or not: metrics are
// open to all, and a database in trouble needs no more of it.
func (c *totalsCollector) get() (catalog.Totals, float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read.IsZero() || time.Since(c.read) > totalsTTL {
		ctx, cancel := context.WithTimeout(context.Background(), readyDeadline)
		defer cancel()
		totals, err := c.catalogue.Totals(ctx)
		c.totals, c.up, c.read = totals, 1, time.Now()
		if err != nil {
			c.up = 0
		}
	}
	return c.totals, c.up
}
