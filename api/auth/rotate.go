package auth

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// The authority's key and certificate are one file each, for readers of other versions; the
// key's file has the certificate, too, so that both change in one instant. While the authority
// is rotated, the former one is in formerFile.
const (
	certFile   = "ca.crt"
	keyFile    = "ca.key"
	formerFile = "former.pem"
)

// signer is an authority's certificate with its key.
type signer struct {
	cert   *x509.Certificate
	key    crypto.Signer
	server *tls.Certificate // the server's own by it, made again in time; under Authority.mu
}

// signers are the authority as it is now, and the one that is accepted beside it while it is
// rotated; nil at other times.
type signers struct {
	now, former *signer
	config      *tls.Config
}

// by is the short form of an authority's hash, by which lists name the issuer.
func (s *signer) by() string { return pinOf(s.cert)[:16] }

// serverName is what a client asks for in its first message, so that it is shown a chain of
// the authority that it knows.
func serverName(pin string) string { return pin[:min(32, len(pin))] + ".onpath" }

// named is the authority of which a client asks for a chain. Clients of other versions name none:
// they know the former one.
func (s *signers) named(server string) *signer {
	if s.former != nil && server != serverName(pinOf(s.now.cert)) {
		return s.former
	}
	return s.now
}

func loadSigner(certFile, keyFile string) (*signer, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &signer{cert: pair.Leaf, key: pair.PrivateKey.(crypto.Signer)}, nil // every key LoadX509KeyPair reads signs
}

func (a *Authority) load() error {
	file := func(name string) string { return filepath.Join(a.dir, name) }
	data, err := os.ReadFile(file(keyFile))
	if err != nil {
		return err
	}
	certIn := certFile
	if bytes.Contains(data, []byte("BEGIN CERTIFICATE")) {
		certIn = keyFile
	}
	now, err := loadSigner(file(certIn), file(keyFile))
	if err != nil {
		return err
	}
	former, err := loadSigner(file(formerFile), file(formerFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case former.by() == now.by(): // the rotation did not get further
		former = nil
	}
	a.take(now, former)
	return nil
}

// take has connections from now on served by authorities.
func (a *Authority) take(now, former *signer) {
	s := &signers{now: now, former: former}
	pool := x509.NewCertPool()
	pool.AddCert(now.cert)
	if former != nil {
		pool.AddCert(former.cert)
	}
	s.config = &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs:  pool,
		NextProtos: []string{"http/1.1"}, // sessions and exec are upgrades of HTTP/1.1
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.serverCert(s, hello.ServerName)
		},
	}
	if former != nil {
		s.config.VerifyConnection = func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) > 0 && c.ServerName == serverName(pinOf(now.cert)) &&
				c.PeerCertificates[0].CheckSignatureFrom(now.cert) == nil {
				a.shown(c.PeerCertificates[0])
			}
			return nil
		}
	}
	a.signers.Store(s)
}

// shown notes that a holder has taken its certificate of the present authority into use. If that
// cannot be written, the holder's next connection has it noted.
func (a *Authority) shown(leaf *x509.Certificate) {
	if len(leaf.URIs) != 1 {
		return
	}
	uri, key := leaf.URIs[0].String(), keyHash(leaf)
	a.mu.Lock()
	defer a.mu.Unlock()
	n := slices.IndexFunc(a.state.Issued[uri], func(k issued) bool { return k.Key == key && !k.Shown })
	if n < 0 {
		return
	}
	_ = a.update(func(s *state) error {
		s.Issued[uri] = slices.Clone(s.Issued[uri])
		s.Issued[uri][n].Shown = true
		return nil
	})
}

// keep writes an authority as the present one.
func (a *Authority) keep(s *signer) error {
	both, err := s.pem()
	if err != nil {
		return err
	}
	// The key first: a certificate without it would be found and not usable.
	if err := wholefile.Write(filepath.Join(a.dir, keyFile), both, 0o600); err != nil {
		return err
	}
	return wholefile.Write(filepath.Join(a.dir, certFile), encodeCert(s.cert.Raw), 0o644)
}

// pem is the key with the certificate.
func (s *signer) pem() ([]byte, error) {
	key, err := encodeKey(s.key)
	return append(key, encodeCert(s.cert.Raw)...), err
}

// Rotation says how far the rotation of the authority is.
type Rotation struct {
	// Authority is the hash of the present certificate, Former of the one before, which is
	// accepted beside it; empty: none is.
	Authority string `json:"authority"`
	Former    string `json:"former,omitempty"`
	// Waiting are the holders that have not yet connected with a certificate of the present
	// authority and by its name: that one is issued does not mean that it is kept. Tokens are the
	// ids of tokens with its hash: who shows them is refused once the rotation has ended.
	Waiting []string `json:"waiting,omitempty"`
	Tokens  []string `json:"tokens,omitempty"`
}

// Rotation tells how far the rotation of the authority is.
func (a *Authority) Rotation() Rotation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rotation()
}

func (a *Authority) rotation() Rotation {
	s := a.signers.Load()
	r := Rotation{Authority: pinOf(s.now.cert)}
	if s.former == nil {
		return r
	}
	r.Former = pinOf(s.former.cert)
	by := s.now.by()
	for uri, keys := range a.state.Issued {
		if slices.ContainsFunc(keys, func(k issued) bool { return !(k.By == by && k.Shown) && a.clock().Before(k.Expires) }) {
			r.Waiting = append(r.Waiting, uri)
		}
	}
	for id, t := range a.state.Tokens {
		if t.By != by && a.clock().Before(t.Expires) {
			r.Tokens = append(r.Tokens, id)
		}
	}
	slices.Sort(r.Waiting)
	slices.Sort(r.Tokens)
	return r
}

// Rotate makes a new authority. Until EndRotation, certificates and clients of the former one
// are accepted, too; a client that connects is given a certificate of the new one.
func (a *Authority) Rotate() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.signers.Load()
	if s.former != nil {
		e := onpath.Errorf(onpath.CodeConflict, "the authority is being rotated")
		e.Remedy = "end that first: onpath rotate authority --end"
		return e
	}
	next, err := newSigner(a.clock())
	if err == nil {
		var was []byte
		if was, err = s.now.pem(); err == nil {
			err = wholefile.Write(filepath.Join(a.dir, formerFile), was, 0o600)
		}
	}
	if err == nil {
		err = a.keep(next)
	}
	if err != nil {
		return a.unwritable("a new authority", err)
	}
	s.now.server = nil // the next one shows both authorities
	a.take(next, s.now)
	return nil
}

// EndRotation refuses the former authority from now on, and returns whose certificates are
// refused. While nodes have no other, it wants force.
func (a *Authority) EndRotation(force bool) (gone []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.signers.Load()
	if s.former == nil {
		e := onpath.Errorf(onpath.CodeConflict, "the authority is not being rotated")
		e.Remedy = "begin with onpath rotate authority"
		return nil, e
	}
	gone = a.rotation().Waiting
	nodes := slices.DeleteFunc(slices.Clone(gone), func(uri string) bool {
		i, err := ParseIdentity(uri)
		return err != nil || i.Role != RoleNode
	})
	if len(nodes) > 0 && !force {
		e := onpath.Errorf(onpath.CodeConflict, "%d nodes have not connected with a certificate of the new authority, %s first; they "+
			"would have to join again", len(nodes), nodes[0])
		e.Remedy = "wait until they have connected (onpath rotate shows them), or give --force"
		return nil, e
	}
	by := s.now.by()
	if err := a.update(func(st *state) error {
		for uri, keys := range st.Issued {
			if keys = slices.DeleteFunc(slices.Clone(keys), func(k issued) bool { return k.By != by }); len(keys) == 0 {
				delete(st.Issued, uri)
			} else {
				st.Issued[uri] = keys
			}
		}
		maps.DeleteFunc(st.Tokens, func(_ string, t token) bool { return t.By != by })
		return nil
	}); err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(a.dir, formerFile)); err != nil {
		return nil, a.unwritable("the end of the rotation", err)
	}
	a.take(s.now, nil)
	return gone, nil
}

func (a *Authority) unwritable(what string, err error) error {
	e := onpath.Errorf(onpath.CodeUnavailable, "%s cannot be written: %w", what, err)
	e.Remedy = "make sure that the disk of " + a.dir + " is healthy and has room, then try again"
	return e
}

// Suspended are the holders of certificates, and the ids of bearer tokens, of a backup: they are
// refused until they are resumed.
func (a *Authority) Suspended() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uri, keys := range a.state.Issued {
		if slices.ContainsFunc(keys, func(k issued) bool { return k.Suspended }) {
			list = append(list, uri)
		}
	}
	for id, t := range a.state.Tokens {
		if t.Suspended {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

// Restored is called with an authority of a backup. Join tokens are withdrawn: some may have been
// used since. Users' certificates and bearer tokens are suspended, unless they are to be kept:
// some may have been revoked since. It counts the suspended ones.
func (a *Authority) Restored(keep bool) (suspended int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.update(func(s *state) error {
		maps.DeleteFunc(s.Tokens, func(_ string, t token) bool { return !t.API })
		if keep {
			return nil
		}
		for id, t := range s.Tokens {
			t.Suspended = true
			s.Tokens[id], suspended = t, suspended+1
		}
		for uri, keys := range s.Issued {
			if i, err := ParseIdentity(uri); err == nil && i.Role == RoleNode {
				continue
			}
			keys = slices.Clone(keys)
			for n := range keys {
				keys[n].Suspended = true
			}
			s.Issued[uri], suspended = keys, suspended+1
		}
		return nil
	})
	return suspended, err
}

// Resume accepts suspended ones again: identities and ids of tokens, or all.
func (a *Authority) Resume(names []string, all bool) (resumed []string, err error) {
	if all == (len(names) > 0) {
		e := onpath.Errorf(onpath.CodeInvalid, "nobody is accepted again: the request needs names, or all, and not both")
		e.Field, e.Remedy = "names", "name identities and ids of tokens, or set all"
		return nil, e
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.update(func(s *state) error {
		for uri, keys := range s.Issued {
			if !all && !slices.Contains(names, uri) || !slices.ContainsFunc(keys, func(k issued) bool { return k.Suspended }) {
				continue
			}
			keys = slices.Clone(keys)
			for n := range keys {
				keys[n].Suspended = false
			}
			s.Issued[uri], resumed = keys, append(resumed, uri)
		}
		for id, t := range s.Tokens {
			if t.Suspended && (all || slices.Contains(names, id)) {
				t.Suspended = false
				s.Tokens[id], resumed = t, append(resumed, id)
			}
		}
		for _, name := range names {
			if !slices.Contains(resumed, name) {
				e := onpath.Errorf(onpath.CodeNotFound, "%s is not suspended", name)
				e.Remedy = "onpath token resume without names lists those that are"
				return e
			}
		}
		return nil
	})
	slices.Sort(resumed)
	return resumed, err
}

// suspended refuses what a restored server does not accept yet.
func suspended(what string) error {
	e := onpath.Errorf(onpath.CodeForbidden, "%s is of a backup that this server was restored from, and may have been revoked since", what)
	e.Remedy = "ask an operator to accept it again (onpath token resume, on the server)"
	return e
}
