package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

const (
	// checkChunk units are asked for at once, or fewer: so many that they are
	// chunkBytes together. Large ones take long to parse.
	checkChunk = 1000
	chunkBytes = 1 << 20
	// maxLine bounds one line of NDJSON, its end included.
	maxLine = 64 << 10
	// maxCheckUnits of one JSON body, and the bound of each: the longest identity fits.
	maxCheckUnits = 10_000
	maxUnit       = 2 * maxLine
)

// chunkDeadline is for the answers to one chunk. A variable for tests only.
var chunkDeadline = requestDeadline

func (s *server) CheckUnits(ctx context.Context, req CheckUnitsRequestObject) (CheckUnitsResponseObject, error) {
	c := checker{s: s, verify: value(req.Params.Verify) == CheckUnitsParamsVerifyHead}
	if req.JSONBody == nil {
		return checkStream{checker: c, ctx: ctx, in: req.Body}, nil
	}
	units := req.JSONBody.Units
	if units == nil {
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "units is missing: send a list").At("/units")
	}
	results := make([]CheckedUnit, 0, len(units))
	for len(units) > 0 {
		chunk, size := make([]question, 0, min(checkChunk, len(units))), 0
		for len(units) > 0 && len(chunk) < checkChunk && size < chunkBytes {
			raw := units[0]
			units = units[1:]
			size += len(raw)
			if len(raw) > maxUnit {
				chunk = append(chunk, question{err: catalog.Errorf(catalog.CodeTooLarge, "the unit is longer than %d bytes", maxUnit)})
				continue
			}
			chunk = append(chunk, ask(raw))
		}
		if err := c.answer(ctx, chunk); err != nil {
			return nil, err
		}
		for i := range chunk {
			results = append(results, c.count(&chunk[i]))
		}
	}
	return CheckUnits200JSONResponse{Results: results, Summary: c.summary}, nil
}

// unitCounter stands before the decoder of a check's JSON body. It refuses too many
// units while they come, since decoded they are many times as large, and what follows
// after the body's one value, which the decoder would not look at.
type unitCounter struct {
	r      io.Reader
	depth  int
	text   bool // within a text
	escape bool // after a backslash in it
	units  int
	done   bool
	err    error
}

func (c *unitCounter) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p)
	if c.err = c.look(p[:n]); c.err == nil && c.done && err == nil {
		// The decoder asks for no more.
		c.err = c.drain()
	}
	if c.err != nil {
		return 0, c.err
	}
	return n, err
}

func (c *unitCounter) drain() error {
	rest := make([]byte, 4<<10)
	for {
		n, err := c.r.Read(rest)
		if problem := c.look(rest[:n]); problem != nil {
			return problem
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (c *unitCounter) look(p []byte) error {
	for _, b := range p {
		switch {
		case c.done:
			if bytes.IndexByte([]byte(" \t\r\n"), b) < 0 {
				return catalog.Errorf(catalog.CodeInvalidRequest, "more follows after the JSON value: send one value")
			}
		case c.escape:
			c.escape = false
		case c.text:
			c.text, c.escape = b != '"', b == '\\'
		case b == '"':
			c.text = true
		case b == '{', b == '[':
			c.depth++
		case b == '}', b == ']':
			c.depth--
			c.done = c.depth == 0
		case b == ',' && c.depth == 2:
			if c.units++; c.units >= maxCheckUnits {
				return catalog.Errorf(catalog.CodeTooLarge, "more than %d units in one JSON body: send the rest apart, or all as application/x-ndjson", maxCheckUnits).At("/units")
			}
		}
	}
	return nil
}

// UnmarshalJSON takes one list of units, which it does not look into.
func (c *CheckRequest) UnmarshalJSON(raw []byte) (err error) {
	c.Units, err = readUnits(raw)
	return err
}

// readUnits reads an object of one list of units.
func readUnits(raw []byte) (units []json.RawMessage, err error) {
	seen := false
	err = eachMember(raw, func(name string, dec *json.Decoder) error {
		if name != "units" {
			return catalog.Errorf(catalog.CodeInvalidRequest, "property %q is unsupported: there is units", name).At(pointer([]string{name}))
		}
		if seen {
			return catalog.Errorf(catalog.CodeInvalidRequest, "member appears twice in its object: remove one of the two").At("/units")
		}
		seen = true
		var kind *json.UnmarshalTypeError
		err := dec.Decode(&units)
		if errors.As(err, &kind) {
			return catalog.Errorf(catalog.CodeInvalidRequest, "a JSON %s does not belong here: send a list", kind.Value).At("/units").Because(err)
		}
		return err
	})
	return units, err
}

// question is one unit of a check and, in time, its answer or its problem.
type question struct {
	line   int64
	size   int // in bytes, as sent
	ref    upsert.UnitRef
	answer upsert.Checked
	err    error
}

// ask reads one UnitRef.
func ask(raw []byte) question {
	ref, err := readUnit(raw)
	if err != nil {
		return question{err: schemaProblemOf("UnitRef", raw, err)}
	}
	return question{ref: ref}
}

// readUnit refuses what encoding/json would take for a UnitRef, and should not: members
// in other capitals, or twice; text that it would replace.
func readUnit(raw []byte) (ref upsert.UnitRef, err error) {
	return readMembers(raw, "", nil)
}

// readMembers is readUnit where one more member is known, and left in *other as it is.
func readMembers(raw []byte, more string, other *json.RawMessage) (ref upsert.UnitRef, err error) {
	if problem := checkText(raw); problem != "" {
		return ref, errors.New(problem)
	}
	seen := make([]string, 0, len(unitMembers))
	err = validMembers(raw, func(name string, value []byte) error {
		read := unitMembers[name]
		if read == nil && name == more {
			read = func(_ *upsert.UnitRef, value []byte) error {
				*other = bytes.Clone(value)
				return nil
			}
		}
		if read == nil || slices.Contains(seen, name) {
			return fmt.Errorf("member %q is unknown, or there twice", name)
		}
		seen = append(seen, name)
		if string(value) == "null" {
			return nil
		}
		err := read(&ref, value)
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			kind.Field = name
		}
		return err
	})
	return ref, err
}

// unitMembers are those of a UnitRef, and how each is read.
var unitMembers = map[string]func(ref *upsert.UnitRef, value []byte) error{
	"unit_key":   func(ref *upsert.UnitRef, value []byte) error { return json.Unmarshal(value, &ref.Key) },
	"collection": func(ref *upsert.UnitRef, value []byte) error { return readText(value, &ref.Collection) },
	"tile_id":    func(ref *upsert.UnitRef, value []byte) error { return readText(value, &ref.TileID) },
	"client_key": func(ref *upsert.UnitRef, value []byte) error { return readText(value, &ref.ClientKey) },
	"identity": func(ref *upsert.UnitRef, value []byte) error {
		ref.Identity = bytes.Clone(value) // the line's buffer is read into again
		return nil
	},
}

func readText(value []byte, into *string) error {
	if value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return json.Unmarshal(value, into)
	}
	*into = string(value[1 : len(value)-1])
	return nil
}

// checker answers questions and keeps the totals.
type checker struct {
	s       *server
	verify  bool
	summary CheckSummary
}

// answer asks for all that could be read at once. An error is the server's; the
// clients' own stay with their questions.
func (c *checker) answer(ctx context.Context, chunk []question) error {
	ours := fmt.Errorf("a chunk of a check took longer than %s", chunkDeadline)
	ctx, cancel := context.WithTimeoutCause(ctx, chunkDeadline, ours)
	defer cancel()
	asked := make([]*question, 0, len(chunk))
	refs := make([]upsert.UnitRef, 0, len(chunk))
	for i := range chunk {
		if chunk[i].err == nil {
			asked, refs = append(asked, &chunk[i]), append(refs, chunk[i].ref)
		}
	}
	if len(refs) == 0 {
		return nil
	}
	answers, err := c.s.Step.Check(ctx, refs, c.verify)
	if err == nil && len(answers) != len(refs) {
		err = fmt.Errorf("check of %d units gave %d answers", len(refs), len(answers))
	}
	if err != nil && errors.Is(context.Cause(ctx), ours) {
		// Whatever waits when our own time is up says that it was let down.
		return catalog.Errorf(catalog.CodeBusy, "%d units were not answered within %s: send all that have no answer again, fewer at once", len(refs), chunkDeadline).Because(err)
	}
	if err != nil {
		return err
	}
	for i, q := range asked {
		q.answer, q.err = answers[i], answers[i].Err
	}
	return nil
}

// count adds one to the totals and gives it as clients see it.
func (c *checker) count(q *question) CheckedUnit {
	t := &c.summary
	t.Total++
	out := CheckedUnit{Line: optional(q.line), UnitKey: optional(q.answer.UnitKey)}
	if q.err != nil {
		t.Errors++
		e := known(q.err)
		out.Error = &ItemError{Code: Code(e.Code), Detail: e.Message, Field: optional(e.Field)}
		return out
	}
	a := &q.answer
	switch a.Status {
	case upsert.StatusDone:
		t.Done++
	case upsert.StatusStale:
		t.Stale++
	case upsert.StatusNew:
		t.New++
	case upsert.StatusRunning:
		t.Running++
	case upsert.StatusQuarantined:
		t.Quarantined++
	case upsert.StatusLost:
		t.Lost++
	}
	if a.Due {
		t.Due++
	}
	out.Status, out.Due, out.Current, out.ObjectKey = new(UnitStatus(a.Status)), &a.Due, &a.Current, optional(a.ObjectKey)
	return out
}

// checkStream is a check as NDJSON both ways. Nothing is held but three chunks: one that is
// read, one that is asked for, and one whose answers are sent.
type checkStream struct {
	checker
	ctx context.Context // of the request; a response object is given none
	in  io.Reader
}

// VisitCheckUnitsResponse answers while it reads. Until the first answer an
// error is an ordinary problem; from then on it goes into the last line.
func (c checkStream) VisitCheckUnitsResponse(w http.ResponseWriter) error {
	rc := http.NewResponseController(w)
	// Without this the server would swallow the rest of the body before the first
	// answer. HTTP/2 needs no leave.
	if rc.EnableFullDuplex() == nil {
		x := exchangeOf(c.ctx)
		x.duplex = x.stream != nil
	}
	in := bufio.NewReaderSize(c.in, maxLine)
	out := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(out)
	send := func(v any) {
		_ = enc.Encode(v) // a bufio.Writer keeps its error for Flush
	}
	flush := func() error {
		_ = rc.SetWriteDeadline(time.Now().Add(idle))
		if err := errors.Join(out.Flush(), rc.Flush()); err != nil {
			return catalog.Errorf(catalog.CodeInvalidRequest, "the answers were not read: read them while you send").Because(err)
		}
		return nil
	}

	quit := make(chan struct{})
	chunks := c.ask(in, quit)
	ended := false
	defer func() {
		// Nobody reads the body when its request is over.
		close(quit)
		if !ended {
			_ = rc.SetReadDeadline(time.Now())
		}
		for range chunks {
		}
	}()
	begun := false
	var broken error
	for chunk := range chunks {
		ended = chunk.broken != nil
		if broken = <-chunk.answered; broken != nil {
			break
		}
		if broken = chunk.broken; !begun && (len(chunk.questions) > 0 || errors.Is(broken, io.EOF)) {
			begun = true
			w.Header().Set("Content-Type", "application/x-ndjson")
			w.WriteHeader(http.StatusOK)
		}
		for i := range chunk.questions {
			send(c.count(&chunk.questions[i]))
		}
		if begun {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if errors.Is(broken, io.EOF) {
		broken = nil
	}
	if !begun {
		return broken
	}
	last := CheckSummaryLine{Summary: c.summary}
	if broken != nil {
		x := exchangeOf(c.ctx)
		x.err = known(broken)
		last.Error = new(newProblem(known(broken), x.id))
	}
	send(last)
	return flush()
}

// askedChunk is a chunk of a stream that is being answered.
type askedChunk struct {
	questions []question
	// broken is why the stream ended after it; nil while it goes on.
	broken error
	// answered gives one error, nil for answers to all.
	answered chan error
}

// ask reads a stream chunk by chunk, in order, until it ends, and has the next read, and
// asked for, while one is answered. quit ends it before; each chunk must be taken.
func (c checkStream) ask(in *bufio.Reader, quit <-chan struct{}) <-chan *askedChunk {
	chunks := make(chan *askedChunk)
	go func() {
		defer close(chunks)
		var line int64
		for broken := error(nil); broken == nil; {
			chunk := &askedChunk{questions: make([]question, 0, checkChunk), answered: make(chan error, 1)}
			for size := 0; len(chunk.questions) < checkChunk && size < chunkBytes && broken == nil; {
				var q question
				if q, broken = nextQuestion(in, &line); broken == nil {
					chunk.questions = append(chunk.questions, q)
					size += q.size
				}
			}
			chunk.broken = broken
			go func() { chunk.answered <- c.answer(c.ctx, chunk.questions) }()
			chunks <- chunk
			select {
			case <-quit:
				return
			default:
			}
		}
	}()
	return chunks
}

func nextQuestion(in *bufio.Reader, line *int64) (question, error) {
	raw, problem, err := nextLine(in, line)
	switch {
	case err != nil:
		return question{}, err
	case problem != nil:
		return question{line: *line, err: problem}, nil
	}
	q := ask(raw)
	q.line, q.size = *line, len(raw)
	return q, nil
}

// nextLine reads the next line that is not blank; it is good until the next read. problem
// is what is wrong with the line; an error is io.EOF at the end, or that the client broke
// off.
func nextLine(in *bufio.Reader, line *int64) (raw []byte, problem *catalog.Error, err error) {
	for {
		raw, err := in.ReadSlice('\n')
		if len(raw) > 0 {
			*line++
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, catalog.Errorf(catalog.CodeTooLarge, "the line is longer than %d bytes: one unit a line, and no line longer", maxLine), skipLine(in)
		case err != nil && !errors.Is(err, io.EOF):
			return nil, nil, catalog.Errorf(catalog.CodeInvalidRequest, "the units broke off, or stood still, at line %d: send the rest again, and read the answers while you send", *line).Because(err)
		}
		if text := bytes.TrimSpace(raw); len(text) > 0 {
			return text, nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// skipLine passes over the rest of a line that was too long.
func skipLine(in *bufio.Reader) error {
	for {
		switch _, err := in.ReadSlice('\n'); {
		case err == nil, errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return catalog.Errorf(catalog.CodeInvalidRequest, "the units broke off, or stood still, within a line").Because(err)
		}
	}
}
