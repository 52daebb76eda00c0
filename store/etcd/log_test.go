package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
)

// TestNewStoreIsNoError lowers what etcd says of every new store, and nothing
// else.
func TestNewStoreIsNoError(t *testing.T) {
	missing := errors.New("cannot detect storage schema version: missing term information")
	for _, c := range []struct {
		first   bool
		message string
		err     error
		shown   bool
	}{
		{true, "failed to update storage version", missing, false},
		{true, "failed to update storage version", errors.New("disk on fire"), true},
		{true, "something else", missing, true},
		{false, "failed to update storage version", missing, true},
		{true, "Failed to detect schema version", missing, false},
	} {
		var b bytes.Buffer
		var up, first atomic.Bool
		up.Store(true)
		first.Store(c.first)
		log := zapTo(slog.New(slog.NewTextHandler(&b, nil)), &up, &first, nil)
		log.Error(c.message, zap.Error(c.err))
		if shown := strings.Contains(b.String(), c.message); shown != c.shown {
			t.Errorf("%+v: got %q", c, b.String())
		}
	}
}
