package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// The lives of certificates. Holders renew theirs after two thirds.
const (
	caLife   = 20 * 365 * 24 * time.Hour
	leafLife = 90 * 24 * time.Hour
	// backdate allows for clocks that are behind: machines without a battery or
	// with their time zone's time for UTC are hours off.
	backdate = 24 * time.Hour
)

// Authority is the server's certificate authority with its lists, kept in one
// directory. It is safe for concurrent use.
type Authority struct {
	dir   string
	clock onpath.Clock
	cert  *x509.Certificate
	key   crypto.Signer

	mu     sync.Mutex
	state  state
	server *tls.Certificate // the present one of ServerTLS
}

// OpenAuthority opens the authority in dir, and makes one there if there is none.
func OpenAuthority(dir string, clock onpath.Clock) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "certificate directory: %w", err)
	}
	if err := wholefile.Clean(dir); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "certificate directory: %w", err)
	}
	a := &Authority{dir: dir, clock: clock}
	if err := a.load(); errors.Is(err, fs.ErrNotExist) {
		if err := a.create(); err != nil {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "make a certificate authority in %s: %w", dir, err)
		}
	} else if err != nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "the certificate authority in %s cannot be read: %w", dir, err)
		e.Remedy = "restore ca.crt and ca.key from a backup; without them every node and user has to join again"
		return nil, e
	}
	return a, a.loadState()
}

func (a *Authority) load() error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, "ca.crt"), filepath.Join(a.dir, "ca.key"))
	if err != nil {
		return err
	}
	a.cert = pair.Leaf
	a.key = pair.PrivateKey.(crypto.Signer) // every key LoadX509KeyPair reads signs
	return nil
}

func (a *Authority) create() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := a.clock()
	t := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: "onpath authority"},
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	// The key first: a certificate without it would be found and not usable.
	if err := wholefile.Write(filepath.Join(a.dir, "ca.key"), keyPEM, 0o600); err != nil {
		return err
	}
	if err := wholefile.Write(filepath.Join(a.dir, "ca.crt"), encodeCert(der), 0o644); err != nil {
		return err
	}
	return a.load()
}

// Pin is the hash of the authority's certificate, which join tokens carry.
func (a *Authority) Pin() string { return pinOf(a.cert) }

func pinOf(c *x509.Certificate) string {
	h := sha256.Sum256(c.Raw)
	return hex.EncodeToString(h[:])
}

// CertPEM is the authority's certificate.
func (a *Authority) CertPEM() []byte { return encodeCert(a.cert.Raw) }

// ServerTLS is the configuration of the server's TLS listener. Clients need no
// certificate to connect: a join has none yet. Identify tells who they are.
func (a *Authority) ServerTLS() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs:  pool,
		NextProtos: []string{"http/1.1"}, // sessions and exec are upgrades of HTTP/1.1
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.serverCert()
		},
	}
}

// serverCert is the server's own certificate, made anew in time.
func (a *Authority) serverCert() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server != nil && a.clock().Before(renewAt(a.server.Leaf)) {
		return a.server, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := a.issue(serverURI, "onpath server", key.Public(), x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	// With the authority's certificate, so that a joining node can check its pin.
	a.server = &tls.Certificate{Certificate: [][]byte{leaf.Raw, a.cert.Raw}, PrivateKey: key, Leaf: leaf}
	return a.server, nil
}

func (a *Authority) issue(uri, name string, key crypto.PublicKey, use x509.ExtKeyUsage) (*x509.Certificate, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	now := a.clock()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: name},
		URIs:         []*url.URL{u},
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use},
	}, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// Identify says whose certificate a connection showed. The certificate must be
// the authority's, and its key still on the list.
func (a *Authority) Identify(s *tls.ConnectionState) (Identity, error) {
	if s == nil || len(s.VerifiedChains) == 0 {
		e := onpath.Errorf(onpath.CodeForbidden, "a certificate is needed")
		e.Remedy = "join with a token from `onpath token create`"
		return Identity{}, e
	}
	leaf := s.VerifiedChains[0][0]
	if len(leaf.URIs) != 1 {
		return Identity{}, onpath.Errorf(onpath.CodeForbidden, "the certificate names nobody")
	}
	i, err := ParseIdentity(leaf.URIs[0].String())
	if err != nil {
		return Identity{}, onpath.Errorf(onpath.CodeForbidden, "the certificate is not for clients: %w", err)
	}
	i.Credential = keyHash(leaf)
	if !a.listed(i) {
		return Identity{}, refused(i)
	}
	return i, nil
}

func refused(i Identity) error {
	e := onpath.Errorf(onpath.CodeForbidden, "the certificate of %s %s was revoked or replaced", i.Role, i.Name)
	e.Remedy = rejoinRemedy(i)
	return e
}

// rejoinRemedy says how somebody who is refused gets in again; the refused
// certificate is replaced by that.
func rejoinRemedy(i Identity) string {
	const start = "make a new token on the server"
	switch i.Role {
	case RoleNode:
		return fmt.Sprintf("%s (onpath token create --node %s) and start the node with it once (onpath node --token WORD)", start, i.Name)
	case RoleViewer:
		return fmt.Sprintf("%s (onpath token create --viewer %s -t %s) and run onpath join WORD", start, i.Name, i.Tenant)
	case RoleUser:
		return fmt.Sprintf("%s (onpath token create --user %s -t %s) and run onpath join WORD", start, i.Name, i.Tenant)
	}
	return fmt.Sprintf("%s (onpath token create --operator %s) and run onpath join WORD", start, i.Name)
}

// renewAt is two thirds of c's life.
func renewAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b)
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
