package auth

import (
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// Bearer tokens are for scripts: a request shows one in its header Authorization, and is
// its holder's while the token lives. The server keeps the hash alone.

// checkAPI refuses bearer tokens that cannot be.
func (r *TokenRequest) checkAPI() error {
	switch {
	case !r.API && len(r.Kinds) > 0:
		return onpath.Errorf(onpath.CodeInvalid, "kinds are of bearer tokens; who joins may do what the role may")
	case !r.API:
		return nil
	case r.Role == RoleNode:
		e := onpath.Errorf(onpath.CodeInvalid, "a node joins by a certificate: it has no bearer token")
		e.Remedy = "name a user or viewer, such as --user NAME, or leave --api out"
		return e
	case r.Uses != 0:
		return onpath.Errorf(onpath.CodeInvalid, "a bearer token is used as often as its holder likes, until it expires; leave --uses out")
	}
	for _, k := range r.Kinds {
		if !slices.Contains(onpath.Kinds(), k) {
			return onpath.Errorf(onpath.CodeInvalid, "there is no kind %q", k)
		}
	}
	return nil
}

// identity is whom a token is for.
func (t token) identity() Identity {
	return Identity{Role: t.Role, Name: t.Name, Tenant: t.Tenant, Kinds: t.Kinds, Until: t.Expires, Credential: "bearer " + t.ID}
}

// Bearer says whose request shows a bearer token.
func (a *Authority) Bearer(word string) (Identity, error) {
	j, err := ParseToken(word)
	if err != nil {
		return Identity{}, onpath.Errorf(onpath.CodeForbidden, "the bearer token cannot be read")
	}
	id, secret, _ := strings.Cut(j.Secret, ".")
	a.mu.Lock()
	defer a.mu.Unlock()
	t, ok := a.state.Tokens[id]
	switch {
	case !ok || !t.API || !t.is(secret):
		e := onpath.Errorf(onpath.CodeForbidden, "the bearer token is not known, or was taken back")
		e.Remedy = "ask an operator for one: onpath token create --api"
		return Identity{}, e
	case a.clock().After(t.Expires):
		return Identity{}, tokenRefused("the bearer token has expired")
	case t.Suspended:
		return Identity{}, suspended("the bearer token")
	}
	return t.identity(), nil
}
