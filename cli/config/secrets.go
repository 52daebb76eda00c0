package config

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

const secretLength = 32

// Secrets are the server's own secret and, while it is rotated, the one before: one file has
// them, the newer one first.
type Secrets struct {
	path string
	mu   sync.Mutex
	keys [][]byte
}

// OpenSecrets reads the secrets kept at path, and makes one the first time.
func OpenSecrets(path string) (*Secrets, error) {
	s := &Secrets{path: path}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, s.keep(newSecret())
	case err != nil:
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the key cannot be read: %w", err)
	case len(b) != secretLength && len(b) != 2*secretLength:
		e := onpath.Errorf(onpath.CodeUnavailable, "%s cannot be used as a key: it has %d bytes, a key has %d", path, len(b), secretLength)
		e.Remedy = "restore it from a backup; or remove it, and the next start makes another and renews the secrets of all tunnels"
		return nil, e
	}
	s.keys = slices.Collect(slices.Chunk(b, secretLength))
	return s, nil
}

// Keys are the secrets, the newest first. Only the first one makes something new.
func (s *Secrets) Keys() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys
}

// Rotate makes a new secret; the one before is good until EndRotation.
func (s *Secrets) Rotate() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 1 {
		e := onpath.Errorf(onpath.CodeConflict, "the server's secret is being rotated")
		e.Remedy = "end that first: onpath rotate secret --end"
		return e
	}
	return s.keep(newSecret(), s.keys[0])
}

// EndRotation forgets the secret before.
func (s *Secrets) EndRotation() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) < 2 {
		e := onpath.Errorf(onpath.CodeConflict, "the server's secret is not being rotated")
		e.Remedy = "begin with onpath rotate secret"
		return e
	}
	return s.keep(s.keys[0])
}

func (s *Secrets) keep(keys ...[]byte) error {
	if err := wholefile.Write(s.path, bytes.Join(keys, nil), 0o600); err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "keep a key: %w", err)
	}
	s.keys = keys
	return nil
}

func newSecret() []byte {
	b := make([]byte, secretLength)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return b
}
