package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"catalogd/internal/catalog"
)

func TestNotifySettings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("a text that is long enough\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags notifyFlags
		tells bool
		want  string
	}{
		{notifyFlags{}, false, ""},
		{notifyFlags{NotifyURL: "https://h/x", NotifySecretFile: file}, true, ""},
		{notifyFlags{NotifyURL: "https://h/x", NotifySecret: "a text that is long enough"}, true, ""},
		{notifyFlags{NotifyURL: "h/x", NotifySecretFile: file}, false, "is not the URL of a receiver"},
		{notifyFlags{NotifyURL: "https://h/x"}, false, "has no secret"},
		{notifyFlags{NotifySecretFile: file}, false, "give that too"},
		{notifyFlags{NotifyURL: "https://h/x", NotifySecretFile: file + "x"}, false, "--notify-secret-file"},
	} {
		notifier, err := c.flags.notifier("")
		if (notifier != nil) != c.tells || (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, %v", c.flags, notifier, err)
		}
	}
}

// A notification tells of a gate as the contract does.
func TestGateData(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	text, err := json.Marshal(gateData(catalog.Gate{ID: id, Batch: "b", State: catalog.GatePassed}, catalog.Batch{Collection: "dem"}))
	if err != nil {
		t.Fatal(err)
	}
	var data map[string]any
	if err := json.Unmarshal(text, &data); err != nil {
		t.Fatal(err)
	}
	if data["gate_id"] != id.String() || data["state"] != "passed" || data["batch"] != "b" || data["collection"] != "dem" || data["figures"] == nil {
		t.Errorf("%s", text)
	}
}
