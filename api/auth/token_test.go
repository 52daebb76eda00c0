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
	if a.listed(i) {
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
		if a.listed(acme) || !a.listed(rival) {
			t.Errorf("acme's user is listed: %t, the other's: %t", a.listed(acme), a.listed(rival))
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
	if !strings.Contains(err.Error(), "cannot be written") || !a.listed(i) {
		t.Errorf("the list in memory is ahead of the file: %v", err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := a.Revoke(i.URI()); err != nil {
		t.Fatalf("again: %v", err)
	}
	if a.listed(i) || authorityAt(t, dir).listed(i) {
		t.Error("the revoked key is still on the list")
	}
}

// TestDropJoinTokens: join tokens that were unused when a backup was made are refused after
// it is restored; bearer tokens are not.
func TestDropJoinTokens(t *testing.T) {
	dir := t.TempDir()
	a := authorityAt(t, dir)
	user := TokenRequest{Role: RoleOperator, Name: "ann", Address: "x:1"}
	secretOf(t, a, user)
	user.API = true
	secretOf(t, a, user)
	if n, err := authorityAt(t, dir).DropJoinTokens(); n != 1 || err != nil {
		t.Errorf("%d dropped: %v", n, err)
	}
	if left := authorityAt(t, dir).Tokens(); len(left) != 1 || !left[0].API {
		t.Errorf("left: %+v", left)
	}
}
