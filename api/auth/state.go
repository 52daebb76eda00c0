package auth

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

type token struct {
	TokenInfo
	Hash string `json:"hash"`         // SHA-256 of the secret, hex
	By   string `json:"by,omitempty"` // signer.by of the authority whose hash the word has; "": of the first
}

// issued is a key that has a certificate.
type issued struct {
	Key     string    `json:"key"` // keyHash
	Expires time.Time `json:"expires"`
	// Grant of a node, from its token.
	Grant *onpath.NodeGrant `json:"grant,omitempty"`
	// By is signer.by of the authority that issued it; "": the first. Suspended: it is of a
	// backup, and refused until an operator resumes it.
	By        string `json:"by,omitempty"`
	Suspended bool   `json:"suspended,omitempty"`
	// Shown: a connection that knows the authority By has shown the certificate.
	Shown bool `json:"shown,omitempty"`
}

// state is DIR/auth.json.
type state struct {
	Tokens map[string]token `json:"tokens"`
	// Issued by Identity.URI: the keys whose certificates are accepted; one for
	// a node, any number for a user.
	Issued map[string][]issued `json:"issued"`
}

func (a *Authority) loadState() error {
	a.state = state{Tokens: map[string]token{}, Issued: map[string][]issued{}}
	data, err := os.ReadFile(filepath.Join(a.dir, "auth.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &a.state)
	}
	if err != nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "the list of tokens and certificates in %s cannot be read: %w", a.dir, err)
		e.Remedy = "restore auth.json there from a backup; or remove it: then nobody who joined is known, and each needs a new token"
		return e
	}
	return nil
}

// update changes a copy of the state as f says, without what has expired, and
// takes it once it is on disk: what could not be written did not happen. Needs
// a.mu.
func (a *Authority) update(f func(*state) error) error {
	next := state{Tokens: maps.Clone(a.state.Tokens), Issued: maps.Clone(a.state.Issued)}
	if err := f(&next); err != nil {
		return err
	}
	now := a.clock()
	for id, t := range next.Tokens {
		if t.Uses <= 0 && !t.API || now.After(t.Expires) {
			delete(next.Tokens, id)
		}
	}
	data, err := json.MarshalIndent(next, "", " ")
	if err == nil {
		err = wholefile.Write(filepath.Join(a.dir, "auth.json"), data, 0o600)
	}
	if err != nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "the list of tokens and certificates cannot be written: %w", err)
		e.Remedy = "make sure that the disk of " + a.dir + " is healthy and has room, then try again"
		return e
	}
	a.state = next
	return nil
}

func (s state) lists(i Identity) bool {
	return slices.ContainsFunc(s.Issued[i.URI()], func(k issued) bool { return k.Key == i.Credential })
}
