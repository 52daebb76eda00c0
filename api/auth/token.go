package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// TokenRequest asks for a join token.
type TokenRequest struct {
	Role Role `json:"role"`
	// Name of the node or user; for nodes it may be empty: each names itself,
	// but no name that is taken.
	Name   string `json:"name,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	// TTL until it expires; default 1h. Uses is how often it can be used;
	// default 1.
	TTL  onpath.Duration `json:"ttl,omitempty"`
	Uses int             `json:"uses,omitempty"`
	// Address at which the server is reached; default its own choice.
	Address string `json:"address,omitempty"`
}

// TokenInfo is a token without its secret.
type TokenInfo struct {
	ID      string    `json:"id"`
	Role    Role      `json:"role"`
	Name    string    `json:"name,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Expires time.Time `json:"expires"`
	Uses    int       `json:"uses"` // left
}

// JoinToken is what a token says once it is decoded.
type JoinToken struct {
	Address string `json:"a"` // host:port
	Pin     string `json:"p"` // hash of the authority's certificate, hex
	Secret  string `json:"s"` // ID.secret
}

const tokenPrefix = "onpath1."

// Encode is the one word that is handed to the new node or user.
func (t JoinToken) Encode() string {
	b, _ := json.Marshal(t) // strings only
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// ParseToken reads a token.
func ParseToken(s string) (t JoinToken, err error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	if ok {
		var b []byte
		if b, err = base64.RawURLEncoding.DecodeString(rest); err == nil {
			err = json.Unmarshal(b, &t)
		}
	}
	if !ok || err != nil || t.Address == "" || t.Secret == "" || len(t.Pin) != 2*sha256.Size {
		e := onpath.Errorf(onpath.CodeInvalid, "this is not a join token (it begins with %s), or not the whole of it", tokenPrefix)
		e.Remedy = "make one with `onpath token create` on the server"
		return JoinToken{}, e
	}
	return t, nil
}

type token struct {
	TokenInfo
	Hash string `json:"hash"` // SHA-256 of the secret, hex
}

// issued is a key that has a certificate.
type issued struct {
	Key     string    `json:"key"` // keyHash
	Expires time.Time `json:"expires"`
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
		return onpath.Errorf(onpath.CodeUnavailable, "the list of tokens and certificates in %s cannot be read: %w", a.dir, err)
	}
	return nil
}

// saveState drops what has expired. Needs a.mu.
func (a *Authority) saveState() error {
	now := a.clock()
	for id, t := range a.state.Tokens {
		if t.Uses <= 0 || now.After(t.Expires) {
			delete(a.state.Tokens, id)
		}
	}
	data, err := json.MarshalIndent(a.state, "", " ")
	if err == nil {
		err = writeFile(filepath.Join(a.dir, "auth.json"), data, 0o600)
	}
	if err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "the list of tokens and certificates cannot be written: %w", err)
	}
	return nil
}

// CreateToken makes a token; the word for the new node or user is returned once
// and not kept.
func (a *Authority) CreateToken(r TokenRequest) (string, TokenInfo, error) {
	if r.Role != RoleNode || r.Name != "" {
		if err := (Identity{Role: r.Role, Name: r.Name, Tenant: r.Tenant}).Check(); err != nil {
			return "", TokenInfo{}, err
		}
	}
	if r.TTL == 0 {
		r.TTL = onpath.Duration(time.Hour)
	}
	if r.Uses == 0 {
		r.Uses = 1
	}
	if r.TTL < 0 || r.Uses < 0 || time.Duration(r.TTL) > 365*24*time.Hour {
		return "", TokenInfo{}, onpath.Errorf(onpath.CodeInvalid, "a token lives up to a year and is used at least once")
	}
	id, secret := randomHex(4), randomHex(16)
	t := token{Hash: hashOf(secret), TokenInfo: TokenInfo{
		ID: id, Role: r.Role, Name: r.Name, Tenant: r.Tenant,
		Expires: a.clock().Add(time.Duration(r.TTL)).UTC().Truncate(time.Second), Uses: r.Uses,
	}}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.Tokens[id] = t
	if err := a.saveState(); err != nil {
		return "", TokenInfo{}, err
	}
	return JoinToken{Address: r.Address, Pin: a.Pin(), Secret: id + "." + secret}.Encode(), t.TokenInfo, nil
}

// Tokens lists the tokens that can still be used.
func (a *Authority) Tokens() []TokenInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := []TokenInfo{}
	for _, t := range a.state.Tokens {
		if t.Uses > 0 && a.clock().Before(t.Expires) {
			list = append(list, t.TokenInfo)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
	return list
}

// DeleteToken makes a token unusable.
func (a *Authority) DeleteToken(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.state.Tokens[id]; !ok {
		return onpath.Errorf(onpath.CodeNotFound, "there is no token %s", id)
	}
	delete(a.state.Tokens, id)
	return a.saveState()
}

// Join redeems a token's secret for a certificate of the key in csr (PEM). Name
// is the node's own; a user who joins gives none.
func (a *Authority) Join(secret, name string, csr []byte) (certPEM []byte, i Identity, err error) {
	request, err := parseRequest(csr)
	if err != nil {
		return nil, i, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	id, word, _ := strings.Cut(secret, ".")
	t, ok := a.state.Tokens[id]
	if !ok || subtle.ConstantTimeCompare([]byte(t.Hash), []byte(hashOf(word))) != 1 {
		return nil, i, tokenRefused("the token is not known, or was used up")
	}
	if a.clock().After(t.Expires) {
		return nil, i, tokenRefused("the token expired at " + t.Expires.Format(time.RFC3339))
	}
	i = Identity{Role: t.Role, Name: t.Name, Tenant: t.Tenant}
	if i.Role != RoleNode && name != "" {
		e := onpath.Errorf(onpath.CodeForbidden, "the token is for %s %s, not for a node", i.Role, i.Name)
		e.Remedy = "make one for the node: onpath token create --node " + name
		return nil, i, e
	}
	if i.Name == "" {
		i.Name = name
	}
	if err := i.Check(); err != nil {
		return nil, i, err
	}
	if i.Role == RoleNode && name != "" && name != i.Name {
		return nil, i, onpath.Errorf(onpath.CodeForbidden, "the token is for node %s, not for %s", i.Name, name)
	}
	if i.Role == RoleNode && t.Name == "" && a.taken(i.URI()) {
		e := onpath.Errorf(onpath.CodeExists, "another machine has joined as node %s", i.Name)
		e.Remedy = "choose another name, or make a token for this one: onpath token create --node " + i.Name
		return nil, i, e
	}
	t.Uses--
	a.state.Tokens[id] = t
	certPEM, err = a.certify(i, request)
	return certPEM, i, err
}

// Renew gives the holder of i a new certificate for the key in csr; the key may
// not change.
func (a *Authority) Renew(i Identity, csr []byte) ([]byte, error) {
	request, err := parseRequest(csr)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if hashOfKey(request) != i.Credential {
		return nil, onpath.Errorf(onpath.CodeForbidden, "a certificate is renewed with the key that it has")
	}
	return a.certify(i, request)
}

// certify issues and lists. Needs a.mu.
func (a *Authority) certify(i Identity, request *x509.CertificateRequest) ([]byte, error) {
	leaf, err := a.issue(i.URI(), i.Name, request.PublicKey, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	fresh := []issued{{Key: keyHash(leaf), Expires: leaf.NotAfter}}
	if i.Role != RoleNode {
		for _, old := range a.state.Issued[i.URI()] {
			if old.Key != fresh[0].Key && a.clock().Before(old.Expires) {
				fresh = append(fresh, old)
			}
		}
	}
	a.state.Issued[i.URI()] = fresh
	if err := a.saveState(); err != nil {
		return nil, err
	}
	return encodeCert(leaf.Raw), nil
}

// Revoke makes all certificates of an identity unacceptable.
func (a *Authority) Revoke(uri string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.state.Issued[uri]; !ok {
		return onpath.Errorf(onpath.CodeNotFound, "nobody has a certificate as %s", uri)
	}
	delete(a.state.Issued, uri)
	return a.saveState()
}

func (a *Authority) listed(i Identity) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.state.Issued[i.URI()] {
		if k.Key == i.Credential {
			return true
		}
	}
	return false
}

// taken needs a.mu.
func (a *Authority) taken(uri string) bool {
	for _, k := range a.state.Issued[uri] {
		if a.clock().Before(k.Expires) {
			return true
		}
	}
	return false
}

func tokenRefused(why string) error {
	e := onpath.Errorf(onpath.CodeForbidden, "%s", why)
	e.Remedy = "make a new one with `onpath token create` on the server"
	return e
}

func parseRequest(csr []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(csr)
	if block == nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the certificate request is not PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = r.CheckSignature()
	}
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the certificate request is wrong: %w", err)
	}
	return r, nil
}

func hashOfKey(r *x509.CertificateRequest) string {
	h := sha256.Sum256(r.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(h[:])
}

func hashOf(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return fmt.Sprintf("%x", b)
}
