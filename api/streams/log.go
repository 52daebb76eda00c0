package streams

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/internal/fairshare"
)

// Log is the operator's public log, as it is read.
type Log interface {
	// Key is what who verifies the log needs (golang.org/x/mod/sumdb/note).
	Key() string
	// Checkpoint is the newest signed one; nil: nothing can be signed.
	Checkpoint() []byte
	// Tile is what is at a path of C2SP's tlog-tiles, tile/….
	Tile(path string) ([]byte, error)
	// Audit calls yield for the last entries of a tenant ("": of all), in clear, the
	// latest last.
	Audit(tenant string, last int, yield func(onpath.LoggedEntry) error) error
}

// Requests for the log that one network has a second: a watcher has a few, who reads all of
// a million entries some thousands.
const (
	logRate  = 200
	logBurst = 1000
)

// serveLog answers GET /log/….
func (s *Streams) serveLog(w http.ResponseWriter, r *http.Request) error {
	if s.d.Public == nil {
		return onpath.Errorf(onpath.CodeUnsupported, "this server keeps no public log")
	}
	from := fairshare.Address(r.RemoteAddr) // operators at the unix socket have none
	if ok, _ := s.readers.Allow(from); from.IsValid() && !ok {
		return onpath.Errorf(onpath.CodeTooMany, "your network asks for the log too often; try again in a second")
	}
	var b []byte
	var err error
	switch path := strings.TrimPrefix(r.URL.Path, "/log/"); {
	case path == "key":
		b = []byte(s.d.Public.Key() + "\n")
	case path == "checkpoint":
		if b = s.d.Public.Checkpoint(); b == nil {
			err = onpath.Errorf(onpath.CodeUnavailable, "the log is not signed just now: the server's log says why")
		}
	default:
		b, err = s.d.Public.Tile(path)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if strings.HasSuffix(r.URL.Path, "checkpoint") || strings.HasSuffix(r.URL.Path, "key") {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	_, _ = w.Write(b)
	return nil
}

const (
	defaultAudit = 100
	mostAudit    = 100_000
)

// audit sends entries of the log in clear, to operators and to the tenant that they are of.
func (s *Streams) audit(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, "tenant", "limit")
	tenant, limit := rights.ScopeTenant(r.Context(), q.Get("tenant")), q.Integer("limit", defaultAudit)
	switch {
	case q.Err != nil:
		return q.Err
	case limit < 1 || limit > mostAudit:
		return onpath.Errorf(onpath.CodeInvalid, "limit: %d is out of range: 1 to %d", limit, mostAudit)
	case s.d.Public == nil:
		return onpath.Errorf(onpath.CodeUnsupported, "this server keeps no public log")
	}
	out := router.NewStream(w, "application/x-ndjson")
	err := s.d.Public.Audit(tenant, limit, func(e onpath.LoggedEntry) error {
		b, err := json.Marshal(&e)
		out.Send(append(b, '\n'))
		return err
	})
	if err == nil {
		out.Send(nil)
	}
	out.End(err)
	return nil
}
