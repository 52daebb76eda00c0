package auth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// Holder is the certificate of a node or user on its own machine: DIR/key.pem
// (0600, never leaves it), cert.pem, ca.pem and server.json. It is safe for
// concurrent use.
type Holder struct {
	dir  string
	info holderInfo
	ca   *x509.Certificate
	key  crypto.Signer

	mu    sync.Mutex
	cert  *tls.Certificate // nil until joined
	stale bool             // the certificate is not of the server's newest authority
	news  chan struct{}    // stale has come
}

type holderInfo struct {
	Address string `json:"address"` // host:port of the server
}

// Joined reports whether a holder's files are in dir.
func Joined(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cert.pem"))
	return err == nil
}

// OpenHolder reads what Join saved in dir.
func OpenHolder(dir string) (*Holder, error) {
	h := &Holder{dir: dir, news: make(chan struct{}, 1)}
	if err := h.load(); errors.Is(err, fs.ErrNotExist) {
		e := onpath.Errorf(onpath.CodeNotFound, "this machine has not joined a server: there is no certificate in %s", dir)
		e.Remedy = "join with a token from `onpath token create`"
		return nil, e
	} else if err != nil {
		e := onpath.Errorf(onpath.CodeInvalid, "the certificate in %s cannot be used: %w", dir, err)
		e.Remedy = "remove the directory and join again with a new token"
		return nil, e
	}
	return h, nil
}

func (h *Holder) load() error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(h.dir, "cert.pem"), filepath.Join(h.dir, "key.pem"))
	if err != nil {
		return err
	}
	h.cert, h.key = &pair, pair.PrivateKey.(crypto.Signer) // every key LoadX509KeyPair reads signs
	caPEM, err := os.ReadFile(filepath.Join(h.dir, "ca.pem"))
	if err != nil {
		return err
	}
	if h.ca, err = parseCert(caPEM); err != nil {
		return err
	}
	h.stale = h.cert.Leaf.CheckSignatureFrom(h.ca) != nil // they were not saved together
	data, err := os.ReadFile(filepath.Join(h.dir, "server.json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, &h.info)
}

// NewHolder makes a key in memory for a join with t.
func NewHolder(dir string, t JoinToken) (*Holder, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Holder{dir: dir, key: key, info: holderInfo{Address: t.Address}, news: make(chan struct{}, 1)}, nil
}

// Address of the server, host:port.
func (h *Holder) Address() string { return h.info.Address }

// Identity is what the certificate says.
func (h *Holder) Identity() (Identity, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cert == nil || len(h.cert.Leaf.URIs) != 1 {
		return Identity{}, onpath.Errorf(onpath.CodeInvalid, "the certificate in %s names nobody", h.dir)
	}
	return ParseIdentity(h.cert.Leaf.URIs[0].String())
}

// Request is a certificate request for the holder's key, in PEM.
func (h *Holder) Request() ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "onpath"}}, h.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// Install takes a certificate for the holder's key into use, and saves it with
// everything else. caPEM may be nil for a renewal: the authority is as it was.
func (h *Holder) Install(certPEM, caPEM []byte) error {
	keyPEM, err := encodeKey(h.key)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("the server's certificate for us: %w", err)
	}
	if caPEM == nil {
		caPEM = encodeCert(h.ca.Raw)
	}
	ca, err := parseCert(caPEM)
	if err != nil {
		return err
	}
	info, _ := json.Marshal(h.info) // a string only
	if err := errors.Join(os.MkdirAll(h.dir, 0o700), wholefile.Clean(h.dir)); err != nil {
		return err
	}
	files := []struct {
		name string
		data []byte
		mode fs.FileMode
	}{{"key.pem", keyPEM, 0o600}, {"ca.pem", caPEM, 0o644}, {"server.json", info, 0o644}, {"cert.pem", certPEM, 0o644}}
	for _, f := range files { // the certificate last: with it the set is complete
		if old, err := os.ReadFile(filepath.Join(h.dir, f.name)); err == nil && bytes.Equal(old, f.data) {
			continue
		}
		if err := wholefile.Write(filepath.Join(h.dir, f.name), f.data, f.mode); err != nil {
			return fmt.Errorf("save the certificate: %w", err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cert, h.ca, h.stale = &pair, ca, false
	return nil
}

// RenewAt is when the certificate should be renewed, Expires when it ends. It is in the past
// once the server has shown another authority.
func (h *Holder) RenewAt() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stale {
		return time.Time{}
	}
	return renewAt(h.cert.Leaf)
}

// News has something once RenewAt is earlier than it was.
func (h *Holder) News() <-chan struct{} { return h.news }

// Expires is the end of the certificate's life.
func (h *Holder) Expires() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cert.Leaf.NotAfter
}

// TLS is the configuration for one connection to the server: the newest certificate is used,
// also after a renewal.
func (h *Holder) TLS() *tls.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	pin, cert := pinOf(h.ca), h.cert
	c := PinnedTLS(pin)
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	c.VerifyConnection = func(s tls.ConnectionState) error {
		err := checkServer(s.PeerCertificates, pin)
		if err == nil && slices.ContainsFunc(s.PeerCertificates, func(c *x509.Certificate) bool { return c.IsCA && pinOf(c) != pin }) {
			h.note(pin)
		}
		return err
	}
	return c
}

// note notes that the server has another authority beside the one with the hash pin.
func (h *Holder) note(pin string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if pinOf(h.ca) != pin {
		return // it is known meanwhile
	}
	h.stale = true
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// PinnedTLS trusts exactly the server of the authority whose certificate has the
// hash pin, at whatever address it is reached.
func PinnedTLS(pin string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"http/1.1"},
		ServerName: serverName(pin),
		// Names and public authorities mean nothing here; VerifyConnection checks
		// the chain to the pinned authority instead, on every connection.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			return checkServer(s.PeerCertificates, pin)
		},
	}
}

func checkServer(chain []*x509.Certificate, pin string) error {
	roots := x509.NewCertPool()
	found := false
	for _, c := range chain {
		if c.IsCA && pinOf(c) == pin {
			roots.AddCert(c)
			found = true
		}
	}
	if !found || len(chain) == 0 {
		e := onpath.Errorf(onpath.CodeForbidden, "the machine that answers is not the server that made the token: its authority's hash "+
			"is not %s…", pin[:min(12, len(pin))])
		e.Remedy = "check the address in between; if the server was installed anew, or its authority was rotated while this machine " +
			"was away, join again with a new token"
		return e
	}
	leaf := chain[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			now := time.Now().UTC().Truncate(time.Second)
			e := onpath.Errorf(onpath.CodeForbidden, "the server's certificate is good from %s to %s, and here it is %s",
				invalid.Cert.NotBefore.Format(time.RFC3339), invalid.Cert.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339))
			e.Cause, e.Remedy = err, "one of the two clocks is wrong: set them (timedatectl set-ntp true); they must agree within a day"
			return e
		}
		return onpath.Errorf(onpath.CodeForbidden, "the server's certificate is wrong: %w", err)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != serverURI {
		return onpath.Errorf(onpath.CodeForbidden, "the machine that answers is a client of the server, not the server")
	}
	return nil
}

func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("the certificate is not PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}
