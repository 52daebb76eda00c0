// Package auth says who somebody is: a certificate authority made at the
// server's first start, join tokens that carry its hash, and the client
// certificates that nodes and users get for them. It knows nothing of HTTP.
package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// Role is what somebody may do.
type Role string

// The roles.
const (
	RoleOperator Role = "operator" // everything
	RoleUser     Role = "user"     // the objects of one tenant
	RoleViewer   Role = "viewer"   // reads the objects of one tenant, and changes nothing
	RoleNode     Role = "node"     // its own session, and pulling images
)

// Identity is who somebody is.
type Identity struct {
	Role Role   `json:"role"`
	Name string `json:"name"`
	// Tenant of a user or viewer.
	Tenant string `json:"tenant,omitempty"`
	// Kinds that a bearer token is for; empty: all that the role has.
	Kinds []onpath.Kind `json:"kinds,omitempty"`
	// Until is when a bearer token ends, and what is done with it; zero: not by itself.
	Until time.Time `json:"-"`
	// Credential is the hash of the key that proved it, or "unix" with the
	// user id: two connections with one Credential are of one holder.
	Credential string `json:"-"`
}

// LocalOperator is each process that may open the server's unix socket.
func LocalOperator() Identity {
	return Identity{Role: RoleOperator, Name: "local", Credential: "unix"}
}

// scheme begins the URI by which a certificate names its holder:
// onpath:node/NAME, onpath:user/TENANT/NAME, onpath:viewer/TENANT/NAME,
// onpath:operator/NAME, onpath:server.
const (
	scheme    = "onpath:"
	serverURI = scheme + "server"
)

// URI is how certificates, and the lists of them, name i.
func (i Identity) URI() string {
	if i.Tenanted() {
		return scheme + string(i.Role) + "/" + i.Tenant + "/" + i.Name
	}
	return scheme + string(i.Role) + "/" + i.Name
}

// Tenanted reports whether somebody belongs to a tenant, and sees nothing of others.
func (i Identity) Tenanted() bool { return i.Role == RoleUser || i.Role == RoleViewer }

// ParseIdentity is the reverse of URI.
func ParseIdentity(uri string) (Identity, error) {
	rest, ok := strings.CutPrefix(uri, scheme)
	parts := strings.Split(rest, "/")
	i := Identity{Role: Role(parts[0]), Name: parts[len(parts)-1]}
	switch {
	case !ok:
	case i.Tenanted() && len(parts) == 3:
		i.Tenant = parts[1]
		return i, i.Check()
	case (i.Role == RoleNode || i.Role == RoleOperator) && len(parts) == 2:
		return i, i.Check()
	}
	return Identity{}, onpath.Errorf(onpath.CodeInvalid,
		"%q is not an identity; write onpath:node/NAME, onpath:user/TENANT/NAME, onpath:viewer/TENANT/NAME or onpath:operator/NAME", uri)
}

var nameShape = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// Check refuses identities that are not complete.
func (i Identity) Check() error {
	if !nameShape.MatchString(i.Name) {
		return onpath.Errorf(onpath.CodeInvalid,
			"%q is no name for a %s (write small letters, digits, dots and dashes, at most 63)", i.Name, i.Role)
	}
	switch {
	case i.Tenanted() && !nameShape.MatchString(i.Tenant):
		return onpath.Errorf(onpath.CodeInvalid, "%s %s needs a tenant", i.Role, i.Name)
	case !i.Tenanted() && i.Tenant != "":
		return onpath.Errorf(onpath.CodeInvalid, "%s %s belongs to no tenant", i.Role, i.Name)
	case !i.Tenanted() && i.Role != RoleNode && i.Role != RoleOperator:
		return onpath.Errorf(onpath.CodeInvalid, "there is no role %q", i.Role)
	}
	return nil
}

// keyHash identifies a certificate's key.
func keyHash(c *x509.Certificate) string {
	h := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(h[:])
}
