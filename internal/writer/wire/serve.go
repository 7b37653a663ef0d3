package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"catalogd/internal/catalog"
)

// Look examines one file and says what it found.
type Look func(job Job, src *Source) Verdict

// Serve is the child's loop: hello, then a verdict for each job until in ends.
// in and out are the pipes to catalogd. dead is called as soon as in ends or
// fails, on another goroutine, even while look is busy: a child outlives its
// parent by nothing.
func Serve(in io.Reader, out io.Writer, hello Hello, look Look, dead func()) error {
	if err := WriteJSON(out, KindHello, hello); err != nil {
		return err
	}
	type frame struct {
		kind    Kind
		payload []byte
		err     error
	}
	frames, ended := make(chan frame, 1), make(chan struct{})
	defer close(ended)
	go func() {
		defer close(frames)
		for {
			kind, payload, err := ReadFrame(in, KindJob, KindData)
			if err != nil {
				dead()
			}
			select {
			case frames <- frame{kind, payload, err}:
			case <-ended:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	next := func(want Kind) ([]byte, error) {
		f, more := <-frames
		if !more {
			return nil, io.EOF // it was told before
		}
		if f.err == nil && f.kind != want {
			return nil, fmt.Errorf("frame of kind %q is out of place", f.kind)
		}
		return f.payload, f.err
	}

	for {
		payload, err := next(KindJob)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var job Job
		if err := json.Unmarshal(payload, &job); err != nil {
			return fmt.Errorf("parse job: %w", err)
		}
		verdict := look(job, NewSource(job.Size, func(offset int64, p []byte) error {
			if err := WriteFrame(out, KindRead, EncodeRead(offset, len(p))); err != nil {
				return err
			}
			data, err := next(KindData)
			if err != nil {
				return err
			}
			if copy(p, data) < len(p) {
				return io.ErrUnexpectedEOF
			}
			return nil
		}))
		err = WriteJSON(out, KindVerdict, verdict)
		if errors.Is(err, errTooLong) {
			err = WriteJSON(out, KindVerdict, Refuse(catalog.CodeProbeFailed,
				"the file's metadata is more than %d MiB long: write less of it", maxPayload[KindVerdict]>>20))
		}
		if err != nil {
			return err
		}
	}
}
