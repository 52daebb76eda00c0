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
	"sync"
	"sync/atomic"
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
	dir     string
	clock   onpath.Clock
	signers atomic.Pointer[signers]

	mu    sync.Mutex
	state state
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

func (a *Authority) create() error {
	s, err := newSigner(a.clock())
	if err == nil {
		err = a.keep(s)
	}
	if err == nil {
		a.take(s, nil)
	}
	return err
}

// newSigner makes a key with its certificate.
func newSigner(now time.Time) (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: "onpath authority"},
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &signer{cert: cert, key: key}, err
}

// Pin is the hash of the authority's certificate, which join tokens carry.
func (a *Authority) Pin() string { return pinOf(a.signers.Load().now.cert) }

func pinOf(c *x509.Certificate) string {
	h := sha256.Sum256(c.Raw)
	return hex.EncodeToString(h[:])
}

// CertPEM is the authority's certificate.
func (a *Authority) CertPEM() []byte { return encodeCert(a.signers.Load().now.cert.Raw) }

// ServerTLS is the configuration of the server's TLS listener. Clients need no
// certificate to connect: a join has none yet. Identify tells who they are.
func (a *Authority) ServerTLS() *tls.Config {
	config := a.signers.Load().config.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return a.signers.Load().config, nil }
	return config
}

// serverCert is the server's own certificate for a client that asks for a name, made again in
// time. While the authority is rotated, a client of the former one sees both.
func (a *Authority) serverCert(all *signers, name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	by := all.named(name)
	if by.server != nil && a.clock().Before(renewAt(by.server.Leaf)) {
		return by.server, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := a.issue(by, serverURI, "onpath server", key.Public(), x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	// With the authority's certificate, so that a joining node can check its pin.
	chain := [][]byte{leaf.Raw, by.cert.Raw}
	if by == all.former {
		chain = append(chain, all.now.cert.Raw)
	}
	by.server = &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}
	return by.server, nil
}

func (a *Authority) issue(by *signer, uri, name string, key crypto.PublicKey, use x509.ExtKeyUsage) (*x509.Certificate, error) {
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
	}, by.cert, key, by.key)
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
	return i, a.accepts(i)
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
