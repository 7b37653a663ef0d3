package upsert

import "catalogd/internal/catalog"

// Leftover is something staged, or an unfinished upload.
type Leftover struct {
	// Upload: an upload in parts, whose UploadID it has; else an object.
	Upload   bool
	UploadID string
	Object   catalog.Object
	// Useless: nobody needs it any more, and a sweep removes it.
	Useless bool
}

// Inspection is what was seen of an object at its final name.
type Inspection struct {
	Object catalog.Object
	// Intent is all of its row, but for what nobody said of it.
	Intent catalog.Intent
	// Tags are the dataset's, About what the store keeps beside the object.
	Tags, About map[string]string
}
