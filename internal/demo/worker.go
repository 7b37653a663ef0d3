package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// delivery is one message of the queue: make this unit. It may come again.
type delivery struct {
	Collection string   `json:"collection"`
	Tile       string   `json:"tile"`
	Identity   identity `json:"identity"`
}

// identity is everything that decides the bytes of a tile.
type identity struct {
	Scene   string `json:"scene"`
	Window  window `json:"window"`
	ZLevel  int    `json:"zlevel"`
	Version string `json:"version"`
}

// receipt answers a delivery.
type receipt struct {
	Outcome outcome `json:"outcome,omitempty"`
	Error   string  `json:"error,omitempty"`
}

type outcome string

const (
	// outcomeDone: this worker's output became the unit's row.
	outcomeDone outcome = "done"
	// outcomeSkipped: the unit had its row; no work was done.
	outcomeSkipped outcome = "skipped"
	// outcomeOvertaken: work was done for nothing, another's came first.
	outcomeOvertaken outcome = "overtaken"
)

// WorkerConfig of a worker process.
type WorkerConfig struct {
	// URL of catalogd, and a token that may write.
	URL, Token string
	// Scene is the raster to cut, Owner the worker's name.
	Scene, Owner string
	// In brings deliveries and Out takes a receipt for each, in order, as lines of
	// JSON.
	In  io.Reader
	Out io.Writer
}

// Work handles deliveries until In ends. A queue that goes away without waiting
// for the receipt of its last delivery no longer wants it: that is dropped.
func Work(ctx context.Context, cfg WorkerConfig) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	deliveries := make(chan delivery)
	go func() {
		for in := json.NewDecoder(cfg.In); ; {
			var d delivery
			if err := in.Decode(&d); err != nil {
				cancel(err)
				return
			}
			select {
			case deliveries <- d:
			case <-ctx.Done():
				return
			}
		}
	}()
	w := worker{client: newClient(cfg.URL, cfg.Token), scene: cfg.Scene, owner: cfg.Owner}
	for out := json.NewEncoder(cfg.Out); ; {
		select {
		case d := <-deliveries:
			var r receipt
			var err error
			if r.Outcome, err = w.handle(ctx, d); err != nil {
				r.Error = err.Error()
			}
			if err := out.Encode(r); err != nil {
				return fmt.Errorf("write a receipt: %w", err)
			}
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, io.EOF) {
				return fmt.Errorf("wait for a delivery: %w", err)
			}
			return nil
		}
	}
}

type worker struct {
	client *client
	scene  string
	owner  string
}

// decision is catalogd's answer to begin.
type decision struct {
	Verdict    string
	Attempt    attempt
	Tags       map[string]string
	RetryAfter float64 `json:"retry_after"`
	Reason     string
}

type attempt struct {
	ID          string `json:"attempt_id"`
	StagingPath string `json:"staging_path"`
}

// handle asks whether the unit is due, and makes it if it is. An attempt that is
// lost to others is begun again, under a request id of its own.
func (w worker) handle(ctx context.Context, d delivery) (outcome, error) {
	for {
		var answer decision
		err := w.client.call(ctx, http.MethodPost, "/v1/attempts", map[string]any{
			"collection": d.Collection, "tile_id": d.Tile, "identity": d.Identity,
			"owner": w.owner, "request_id": rand.Text(),
		}, &answer)
		if err != nil && !isProblem(err, "attempt_ended") {
			return "", err
		}
		switch answer.Verdict {
		case "skip":
			return outcomeSkipped, nil
		case "run":
			ended, err := w.run(ctx, d, answer)
			if !isProblem(err, "attempt_ended", "attempt_lost") {
				return ended, err
			}
		case "wait":
			select {
			case <-time.After(time.Duration(answer.RetryAfter * float64(time.Second))):
			case <-ctx.Done():
				return "", ctx.Err()
			}
		case "quarantined":
			return "", errors.New("quarantined: " + answer.Reason)
		}
	}
}

// run makes the tile where catalogd says, and hands it over.
func (w worker) run(ctx context.Context, d delivery, begun decision) (outcome, error) {
	path := "/v1/attempts/" + begun.Attempt.ID
	stop := w.keep(ctx, begun.Attempt.ID)
	defer stop()
	if err := translate(ctx, w.scene, begun.Attempt.StagingPath, d.Identity, begun.Tags); err != nil {
		failed := w.client.call(ctx, http.MethodPost, path+"/fail", map[string]any{"reason": "gdal_translate", "message": err.Error()}, nil)
		return "", errors.Join(err, failed)
	}
	size, checksum, err := hashFile(begun.Attempt.StagingPath)
	if err != nil {
		return "", err
	}
	var answer struct{ State outcome }
	err = w.client.call(ctx, http.MethodPost, path+"/complete", map[string]any{"size_bytes": size, "checksum": checksum}, &answer)
	return answer.State, err
}

// translate cuts the window out of the scene, with the tags that tell whose it is.
func translate(ctx context.Context, scene, output string, id identity, tags map[string]string) error {
	args := append([]string{
		"-q", "-of", "GTiff", "-co", "TILED=YES", "-co", "COMPRESS=DEFLATE", "-co", "ZLEVEL=" + strconv.Itoa(id.ZLevel), "-srcwin",
	}, id.Window.args()...)
	for name, value := range tags {
		args = append(args, "-mo", name+"="+value)
	}
	_, err := gdal(ctx, "gdal_translate", append(args, scene, output)...)
	return err
}

// keep renews the attempt's lease until it is stopped. A heartbeat that fails is
// made up for by the next, and a lost lease shows when the output is handed over.
func (w worker) keep(ctx context.Context, attempt string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		ticker := time.NewTicker(20 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_ = w.client.call(ctx, http.MethodPost, "/v1/heartbeats", map[string]any{"attempts": []string{attempt}}, nil)
			case <-ctx.Done():
				return
			}
		}
	}()
	return cancel
}
