package auth

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
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
	// Cloudlet and Uplinks are what a node may have: names of devices, or onpath.AnyUplink.
	// The default is cloudlet "default", and no uplinks.
	Cloudlet string   `json:"cloudlet,omitempty"`
	Uplinks  []string `json:"uplinks,omitempty"`
	// Address at which the server is reached; default its own choice.
	Address string `json:"address,omitempty"`
	// API makes a bearer token for scripts: each request shows it, and nobody joins by it.
	API bool `json:"api,omitempty"`
	// Kinds that a bearer token is for, and nothing else; default all that the role has.
	Kinds []onpath.Kind `json:"kinds,omitempty"`
}

// TokenInfo is a token without its secret.
type TokenInfo struct {
	ID      string    `json:"id"`
	Role    Role      `json:"role"`
	Name    string    `json:"name,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Expires time.Time `json:"expires"`
	Uses    int       `json:"uses"` // left; of bearer tokens 0
	// API: it is a bearer token, for these kinds.
	API   bool          `json:"api,omitempty"`
	Kinds []onpath.Kind `json:"kinds,omitempty"`
	// Grant is what a node that joins by it may say of itself; nil for others.
	Grant *onpath.NodeGrant `json:"grant,omitempty"`
	// Suspended: it is of a backup, and refused until an operator resumes it.
	Suspended bool `json:"suspended,omitempty"`
}

// JoinToken is what a token says once it is decoded.
type JoinToken struct {
	Address string `json:"a"` // host:port
	Pin     string `json:"p"` // hash of the authority's certificate, hex
	Secret  string `json:"s"` // ID.secret
	// Node is the name of the node that the token is for; "": it names itself, or joins nobody.
	Node string `json:"n,omitempty"`
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
	if r.Uses == 0 && !r.API {
		r.Uses = 1
	}
	if err := r.checkAPI(); err != nil {
		return "", TokenInfo{}, err
	}
	if r.TTL < 0 || r.Uses < 0 || time.Duration(r.TTL) > 365*24*time.Hour {
		return "", TokenInfo{}, onpath.Errorf(onpath.CodeInvalid, "a token lives up to a year and is used at least once")
	}
	grant, err := grantOf(r)
	if err != nil {
		return "", TokenInfo{}, err
	}
	id, secret := randomHex(4), randomHex(16)
	t := token{Hash: hashOf(secret), By: a.signers.Load().now.by(), TokenInfo: TokenInfo{
		ID: id, Role: r.Role, Name: r.Name, Tenant: r.Tenant,
		Expires: a.clock().Add(time.Duration(r.TTL)).UTC().Truncate(time.Second), Uses: r.Uses, Grant: grant,
		API: r.API, Kinds: r.Kinds,
	}}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.update(func(s *state) error { s.Tokens[id] = t; return nil }); err != nil {
		return "", TokenInfo{}, err
	}
	word := JoinToken{Address: r.Address, Pin: a.Pin(), Secret: id + "." + secret}
	if r.Role == RoleNode {
		word.Node = r.Name
	}
	return word.Encode(), t.TokenInfo, nil
}

// grantOf is what a node gets that joins by a token.
func grantOf(r TokenRequest) (*onpath.NodeGrant, error) {
	if r.Role != RoleNode {
		if r.Cloudlet != "" || len(r.Uplinks) > 0 {
			return nil, onpath.Errorf(onpath.CodeInvalid, "cloudlet and uplinks are a node's; the token is for %s %s", r.Role, r.Name)
		}
		return nil, nil
	}
	g := &onpath.NodeGrant{Cloudlet: cmp.Or(r.Cloudlet, onpath.DefaultTenant), Uplinks: r.Uplinks}
	if !nameShape.MatchString(g.Cloudlet) {
		return nil, onpath.Errorf(onpath.CodeInvalid,
			"%q is no name of a cloudlet (write small letters, digits, dots and dashes, at most 63)", g.Cloudlet)
	}
	for _, device := range g.Uplinks {
		if device == "" || len(device) > maxDevice {
			return nil, onpath.Errorf(onpath.CodeInvalid, "%q is no name of a network device (at most %d characters)", device, maxDevice)
		}
	}
	return g, nil
}

// maxDevice is the longest name of a network device (IFNAMSIZ).
const maxDevice = 15

// Grant is what a node may say of itself, by the token that it joined with. Nodes that
// joined with version 0.1 have none: theirs is the default cloudlet.
func (a *Authority) Grant(i Identity) *onpath.NodeGrant {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.state.Issued[i.URI()] {
		if k.Key == i.Credential && k.Grant != nil {
			return k.Grant
		}
	}
	return &onpath.NodeGrant{Cloudlet: onpath.DefaultTenant}
}

// Tokens lists the tokens that can still be used.
func (a *Authority) Tokens() []TokenInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := []TokenInfo{}
	for _, t := range a.state.Tokens {
		if (t.Uses > 0 || t.API) && a.clock().Before(t.Expires) {
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
	return a.update(func(s *state) error {
		if _, ok := s.Tokens[id]; !ok {
			e := onpath.Errorf(onpath.CodeNotFound, "there is no token %s", id)
			e.Remedy = "onpath token list shows those that can be used"
			return e
		}
		delete(s.Tokens, id)
		return nil
	})
}

// Join redeems a token's secret for a certificate of the key in csr (PEM). Name
// is the node's own; a user who joins gives none. The secret is looked at first:
// a caller that has none is to cost nothing.
func (a *Authority) Join(secret, name string, csr []byte) (certPEM []byte, i Identity, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, err := a.redeemable(secret)
	if err != nil {
		return nil, i, err
	}
	request, err := parseRequest(csr)
	if err != nil {
		return nil, i, err
	}
	if i, err = a.joining(t, name); err != nil {
		return nil, i, err
	}
	err = a.update(func(s *state) error {
		t.Uses--
		s.Tokens[t.ID] = t
		certPEM, err = a.certify(s, i, t.Grant, request)
		return err
	})
	return certPEM, i, err
}

// redeemable is the token of a secret. Needs a.mu.
func (a *Authority) redeemable(secret string) (token, error) {
	id, word, _ := strings.Cut(secret, ".")
	t, ok := a.state.Tokens[id]
	if ok && t.API && t.is(word) {
		e := onpath.Errorf(onpath.CodeForbidden, "this is a bearer token: nobody joins by it")
		e.Remedy = "show it with each request (ONPATH_TOKEN=WORD onpath …), or make a token without --api"
		return token{}, e
	}
	if !ok || !t.is(word) {
		return token{}, tokenRefused("the token is not known, or was used up")
	}
	if a.clock().After(t.Expires) {
		return token{}, tokenRefused("the token expired at " + t.Expires.Format(time.RFC3339))
	}
	return t, nil
}

func (t token) is(word string) bool {
	return subtle.ConstantTimeCompare([]byte(t.Hash), []byte(hashOf(word))) == 1
}

// joining is who joins by a token. Needs a.mu.
func (a *Authority) joining(t token, name string) (Identity, error) {
	i := Identity{Role: t.Role, Name: t.Name, Tenant: t.Tenant}
	if i.Role != RoleNode && name != "" {
		e := onpath.Errorf(onpath.CodeForbidden, "the token is for %s %s, not for a node", i.Role, i.Name)
		e.Remedy = "make one for the node: onpath token create --node " + name
		return i, e
	}
	if i.Name == "" {
		i.Name = name
	}
	if err := i.Check(); err != nil {
		return i, err
	}
	if i.Role == RoleNode && name != "" && name != i.Name {
		return i, onpath.Errorf(onpath.CodeForbidden, "the token is for node %s, not for %s", i.Name, name)
	}
	if i.Role == RoleNode && t.Name == "" && a.taken(i.URI()) {
		e := onpath.Errorf(onpath.CodeExists, "another machine has joined as node %s", i.Name)
		e.Remedy = "choose another name, or make a token for this one: onpath token create --node " + i.Name
		return i, e
	}
	return i, nil
}

// Renew gives the holder of i a new certificate for the key in csr; the key may
// not change, and not have been revoked since the request began.
func (a *Authority) Renew(i Identity, csr []byte) (certPEM []byte, err error) {
	request, err := parseRequest(csr)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if hashOfKey(request) != i.Credential {
		return nil, onpath.Errorf(onpath.CodeForbidden, "a certificate is renewed with the key that it has")
	}
	if !a.state.lists(i) {
		return nil, refused(i)
	}
	err = a.update(func(s *state) error {
		var grant *onpath.NodeGrant // stays as it is
		for _, k := range s.Issued[i.URI()] {
			if k.Key == i.Credential {
				grant = k.Grant
			}
		}
		certPEM, err = a.certify(s, i, grant, request)
		return err
	})
	return certPEM, err
}

// certify issues and lists. Needs a.mu.
func (a *Authority) certify(s *state, i Identity, grant *onpath.NodeGrant, request *x509.CertificateRequest) ([]byte, error) {
	by := a.signers.Load().now
	leaf, err := a.issue(by, i.URI(), i.Name, request.PublicKey, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	fresh := []issued{{Key: keyHash(leaf), Expires: leaf.NotAfter, Grant: grant, By: by.by()}}
	if i.Role != RoleNode {
		for _, old := range s.Issued[i.URI()] {
			if old.Key != fresh[0].Key && a.clock().Before(old.Expires) {
				fresh = append(fresh, old)
			}
		}
	}
	s.Issued[i.URI()] = fresh
	return encodeCert(leaf.Raw), nil
}

// Revoke makes all certificates of an identity unacceptable.
func (a *Authority) Revoke(uri string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.update(func(s *state) error {
		bearers := len(s.Tokens)
		maps.DeleteFunc(s.Tokens, func(_ string, t token) bool { return t.API && t.identity().URI() == uri })
		if _, ok := s.Issued[uri]; !ok && len(s.Tokens) == bearers {
			return onpath.Errorf(onpath.CodeNotFound, "nobody has a certificate as %s", uri)
		}
		delete(s.Issued, uri)
		return nil
	})
}

// RevokeTenant makes the certificates and tokens of a tenant's users
// unacceptable: one that has its name later is somebody else. It returns the
// identities.
func (a *Authority) RevokeTenant(tenant string) (revoked []string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.update(func(s *state) error {
		for uri := range s.Issued {
			if i, err := ParseIdentity(uri); err == nil && i.Tenanted() && i.Tenant == tenant {
				revoked = append(revoked, uri)
				delete(s.Issued, uri)
			}
		}
		for id, t := range s.Tokens {
			if t.identity().Tenanted() && t.Tenant == tenant {
				delete(s.Tokens, id)
			}
		}
		return nil
	})
	return revoked, err
}

// accepts refuses whose certificate is not on the list, or suspended.
func (a *Authority) accepts(i Identity) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.state.Issued[i.URI()] {
		switch {
		case k.Key != i.Credential:
		case k.Suspended:
			return suspended(fmt.Sprintf("the certificate of %s %s", i.Role, i.Name))
		default:
			return nil
		}
	}
	return refused(i)
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

// maxRequest is the size of a certificate request (PEM), several times what one
// of ours has.
const maxRequest = 4 << 10

// parseRequest reads a certificate request for a key such as ours make: others
// can be made to cost the server seconds.
func parseRequest(csr []byte) (*x509.CertificateRequest, error) {
	if len(csr) > maxRequest {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the certificate request has %d bytes; %d are enough", len(csr), maxRequest)
	}
	block, _ := pem.Decode(csr)
	if block == nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the certificate request is not PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the certificate request is wrong: %w", err)
	}
	if key, ok := r.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the certificate request is for a key of another kind than ECDSA P-256")
	}
	if err := r.CheckSignature(); err != nil {
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
