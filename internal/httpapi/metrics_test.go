package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestMetrics(t *testing.T) {
	f := newFake()
	url, _ := serve(t, f, nil)
	call(t, "GET", url+"/v1/collections", "read", "", "")
	call(t, "GET", url+"/nowhere", "", "", "")
	_, body := call(t, "GET", url+"/metrics", "", "", "")
	for _, want := range []string{
		`catalogd_http_request_duration_seconds_count{operation="listCollections",status="200"} 1`,
		`catalogd_http_request_duration_seconds_count{operation="none",status="404"} 1`,
		`catalogd_tiles 12`, `catalogd_slots 9`, `catalogd_attempts{state="open"} 3`, `catalogd_database_up 1`,
		`catalogd_build_info{version="test"} 1`,
		`catalogd_batch_units{batch="b",collection="dem",status="done"} 4`, `catalogd_batch_units{batch="b",collection="dem",status="lost"} 3`,
		`catalogd_batch_units{batch="b",collection="dem",status="pending"} 0`, `catalogd_batch_counted_timestamp{batch="b",collection="dem"} 1.7960769755e+09`,
		`catalogd_batch_gate_error{batch="b",collection="dem"} 1`,
		fmt.Sprintf(`catalogd_reconcile_last_complete_timestamp_seconds{store="default"} %g`, float64(at.Unix())),
		`catalogd_reconcile_last_complete_timestamp_seconds{store="new"} 0`, `catalogd_reconcile_last_duration_seconds{store="default"} 161`,
		`catalogd_reconcile_last_incomplete{store="default"} 1`, `catalogd_reconcile_last_incomplete{store="new"} 0`,
		`catalogd_findings{kind="orphan",store="default"} 5`, `catalogd_findings{kind="lost",store="default"} 0`, `catalogd_finding_bytes{kind="orphan",store="default"} 77`,
		`catalogd_trash_objects{store="default"} 4`, `catalogd_trash_bytes{store="default"} 99`,
		`catalogd_scrub_lap_ended_timestamp_seconds{store="default"} 0`, `catalogd_scrub_lap_began_timestamp_seconds{store="new"} 0`,
		`catalogd_scrub_verified_total{store="default"} 100`, `catalogd_scrub_read_bytes_total{store="default"} 200`, `catalogd_scrub_bad_total{store="default"} 1`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	// What the alerts look at is there.
	alerts, err := os.ReadFile("../../deploy/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, expr := range alertExpressions(t, alerts) {
		for _, name := range regexp.MustCompile(`catalogd_\w+`).FindAllString(expr, -1) {
			if !strings.Contains(body, "\n"+name+"{") && !strings.Contains(body, "\n"+name+" ") {
				t.Errorf("deploy/alerts.yml: there is no metric %s", name)
			}
		}
	}

	f = newFake()
	f.fail = errors.New("away")
	url, _ = serve(t, f, nil)
	if res, body := call(t, "GET", url+"/metrics", "", "", ""); res.StatusCode != 200 || !strings.Contains(body, "catalogd_database_up 0\n") {
		t.Errorf("without a database: %d %s", res.StatusCode, body)
	}
}

// alertExpressions are those of a file of rules; each rule says what to do.
func alertExpressions(t *testing.T, text []byte) (all []string) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      struct {
					Summary, Description string
					RunbookURL           string `yaml:"runbook_url"`
				}
			}
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if a := rule.Annotations; rule.Alert == "" || rule.Expr == "" || rule.Labels["severity"] == "" || a.Summary == "" || a.Description == "" || a.RunbookURL == "" {
				t.Errorf("deploy/alerts.yml: something lacks of %+v", rule)
			}
			all = append(all, rule.Expr)
		}
	}
	if len(all) < 10 {
		t.Errorf("deploy/alerts.yml has %d rules", len(all))
	}
	return all
}
