package main

import (
	"fmt"

	"catalogd/internal/catalog"
	"catalogd/internal/httpapi"
	"catalogd/internal/jobs"
)

// notifyFlags say who is told how batches were judged.
type notifyFlags struct {
	NotifyURL        string `env:"CATALOGD_NOTIFY_URL" placeholder:"URL" help:"Where to tell how a batch was judged; see docs/notifications.md."`
	NotifySecret     string `env:"CATALOGD_NOTIFY_SECRET" help:"What that is signed with, known to the receiver too: whsec_ and base64, or any text."`
	NotifySecretFile string `env:"CATALOGD_NOTIFY_SECRET_FILE" type:"path" help:"A file that holds it."`
}

// notifier is nil where nobody is to be told.
func (f notifyFlags) notifier(publicURL string) (*jobs.Notifier, error) {
	text, err := secret(f.NotifySecret, f.NotifySecretFile)
	if err != nil {
		return nil, fmt.Errorf("--notify-secret-file: %w", err)
	}
	if f.NotifyURL == "" {
		if text != "" {
			return nil, usageError("--notify-secret signs what is sent to --notify-url: give that too")
		}
		return nil, nil
	}
	source := publicURL
	if source == "" {
		source = "/catalogd"
	}
	notifier, err := jobs.NewNotifier(f.NotifyURL, text, source, gateData)
	if err != nil {
		return nil, usageError("--notify-url " + err.Error())
	}
	return notifier, nil
}

// gateData is a gate as the contract has it, with its collection.
func gateData(g catalog.Gate, b catalog.Batch) any {
	return struct {
		httpapi.Gate
		Collection string `json:"collection"`
	}{httpapi.GateData(g), b.Collection}
}
