package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// csr is a certificate request for a key, and the hash by which that is listed.
func csr(t *testing.T, key any) (request []byte, credential string) {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.Sum256(r.RawSubjectPublicKeyInfo)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), hex.EncodeToString(h[:])
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func authorityAt(t *testing.T, dir string) *Authority {
	t.Helper()
	a, err := OpenAuthority(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// secretOf makes a token and takes its secret out.
func secretOf(t *testing.T, a *Authority, r TokenRequest) string {
	t.Helper()
	word, _, err := a.CreateToken(r)
	if err != nil {
		t.Fatal(err)
	}
	j, err := ParseToken(word)
	if err != nil {
		t.Fatal(err)
	}
	return j.Secret
}

func wantCode(t *testing.T, err error, code onpath.Code) {
	t.Helper()
	if got := onpath.CodeOf(err); got != code {
		t.Fatalf("got %q (%v), want %q", got, err, code)
	}
}

// TestJoinLooksAtTheSecretFirst: without a secret no request is looked into, and
// keys of other kinds, which may be dear to check, are refused.
func TestJoinLooksAtTheSecretFirst(t *testing.T) {
	a := authorityAt(t, t.TempDir())
	_, _, err := a.Join("nobody.knows", "n1", []byte("no request"))
	wantCode(t, err, onpath.CodeForbidden)
	secret := secretOf(t, a, TokenRequest{Role: RoleNode, Address: "server:7443"})
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	request, _ := csr(t, key)
	_, _, err = a.Join(secret, "n1", request)
	wantCode(t, err, onpath.CodeInvalid)
	good, _ := csr(t, ecKey(t))
	_, _, err = a.Join(secret, "n1", append(good, make([]byte, maxRequest)...))
	wantCode(t, err, onpath.CodeInvalid)
	if _, _, err := a.Join(secret, "n1", good); err != nil {
		t.Errorf("a refused request has used the token up: %v", err)
	}
}

// TestRenewAfterRevocation: a renewal that began before its key was revoked does
// not put it back on the list.
func TestRenewAfterRevocation(t *testing.T) {
	a := authorityAt(t, t.TempDir())
	request, credential := csr(t, ecKey(t))
	_, i, err := a.Join(secretOf(t, a, TokenRequest{Role: RoleUser, Name: "alice", Tenant: "acme", Address: "server:7443"}), "", request)
	if err != nil {
		t.Fatal(err)
	}
	i.Credential = credential
	if _, err := a.Renew(i, request); err != nil {
		t.Fatal(err)
	}
	if err := a.Revoke(i.URI()); err != nil {
		t.Fatal(err)
	}
	_, err = a.Renew(i, request)
	wantCode(t, err, onpath.CodeForbidden)
	if accepted(a, i) {
		t.Error("the revoked key is on the list again")
	}
}

// TestRevokeTenant: users and tokens of one tenant are gone, those of others stay.
func TestRevokeTenant(t *testing.T) {
	dir := t.TempDir()
	a := authorityAt(t, dir)
	join := func(tenant string) Identity {
		request, credential := csr(t, ecKey(t))
		_, i, err := a.Join(secretOf(t, a, TokenRequest{Role: RoleUser, Name: "alice", Tenant: tenant, Address: "server:7443"}), "", request)
		if err != nil {
			t.Fatal(err)
		}
		i.Credential = credential
		return i
	}
	acme, rival := join("acme"), join("rival")
	unused := secretOf(t, a, TokenRequest{Role: RoleUser, Name: "bob", Tenant: "acme", Address: "server:7443"})
	gone, err := a.RevokeTenant("acme")
	if err != nil || len(gone) != 1 || gone[0] != acme.URI() {
		t.Fatalf("revoked %v, %v", gone, err)
	}
	for _, a := range []*Authority{a, authorityAt(t, dir)} {
		if accepted(a, acme) || !accepted(a, rival) {
			t.Errorf("acme's user is listed: %t, the other's: %t", accepted(a, acme), accepted(a, rival))
		}
	}
	request, _ := csr(t, ecKey(t))
	_, _, err = a.Join(unused, "", request)
	wantCode(t, err, onpath.CodeForbidden)
}

// TestRevokeNotWritten: what cannot be written has not happened, and can be tried
// again.
func TestRevokeNotWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "auth")
	a := authorityAt(t, dir)
	request, credential := csr(t, ecKey(t))
	_, i, err := a.Join(secretOf(t, a, TokenRequest{Role: RoleOperator, Name: "eve", Address: "server:7443"}), "", request)
	if err != nil {
		t.Fatal(err)
	}
	i.Credential = credential
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	err = a.Revoke(i.URI())
	wantCode(t, err, onpath.CodeUnavailable)
	if !strings.Contains(err.Error(), "cannot be written") || !accepted(a, i) {
		t.Errorf("the list in memory is ahead of the file: %v", err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := a.Revoke(i.URI()); err != nil {
		t.Fatalf("again: %v", err)
	}
	if accepted(a, i) || accepted(authorityAt(t, dir), i) {
		t.Error("the revoked key is still on the list")
	}
}

func accepted(a *Authority, i Identity) bool { return a.accepts(i) == nil }

// TestRestored: of a backup, nodes are accepted and join tokens are not. Users and bearer tokens
// are suspended until they are resumed, one or all, unless they are to be kept.
func TestRestored(t *testing.T) {
	made := func() (dir string, node, user Identity, word string) {
		dir = t.TempDir()
		a := authorityAt(t, dir)
		join := func(r TokenRequest, name string) Identity {
			request, credential := csr(t, ecKey(t))
			_, i, err := a.Join(secretOf(t, a, r), name, request)
			if err != nil {
				t.Fatal(err)
			}
			i.Credential = credential
			return i
		}
		node = join(TokenRequest{Role: RoleNode, Address: "x:1"}, "n1")
		user = join(TokenRequest{Role: RoleOperator, Name: "ann", Address: "x:1"}, "")
		secretOf(t, a, TokenRequest{Role: RoleOperator, Name: "eve", Address: "x:1"})
		word, _, err := a.CreateToken(TokenRequest{Role: RoleViewer, Name: "grafana", Tenant: "acme", Address: "x:1", API: true})
		if err != nil {
			t.Fatal(err)
		}
		return dir, node, user, word
	}
	dir, node, user, word := made()
	if n, err := authorityAt(t, dir).Restored(false); n != 2 || err != nil {
		t.Errorf("%d are suspended, want the user and the bearer token: %v", n, err)
	}
	a := authorityAt(t, dir)
	if left := a.Tokens(); len(left) != 1 || !left[0].API || !left[0].Suspended {
		t.Errorf("left: %+v", left)
	}
	if !accepted(a, node) {
		t.Error("a node is not accepted")
	}
	_, err := a.Bearer(word)
	for _, err := range []error{err, a.accepts(user)} {
		if wantCode(t, err, onpath.CodeForbidden); !strings.Contains(err.Error(), "restored") || !strings.Contains(err.Error(), "onpath token resume") {
			t.Errorf("%v", err)
		}
	}
	if names, err := a.Resume([]string{user.URI()}, false); err != nil || len(names) != 1 || !accepted(a, user) {
		t.Errorf("resumed: %v, %v", names, err)
	}
	if _, err := a.Resume([]string{user.URI()}, false); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("resumed again: %v", err)
	}
	for _, wrong := range []bool{false, true} { // neither names nor all, and both
		names := []string{user.URI()}[:map[bool]int{true: 1}[wrong]]
		if names, err := a.Resume(names, wrong); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Fatalf("resumed %v, %v", names, err)
		}
	}
	if names, err := a.Resume(nil, true); err != nil || len(names) != 1 || len(a.Suspended()) != 0 {
		t.Errorf("all resumed: %v, %v", names, err)
	}
	if _, err := authorityAt(t, dir).Bearer(word); err != nil {
		t.Error(err)
	}
	dir, _, user, word = made()
	if n, err := authorityAt(t, dir).Restored(true); n != 0 || err != nil {
		t.Errorf("%d are suspended though they are to be kept: %v", n, err)
	}
	if a = authorityAt(t, dir); !accepted(a, user) {
		t.Error("a user who is to be kept is refused")
	}
	if _, err := a.Bearer(word); err != nil {
		t.Error(err)
	}
}
