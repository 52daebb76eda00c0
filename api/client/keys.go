package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/onpath/onpath/api/wire"
)

// Keys asks a server to replace its keys, and to accept again whom a restored one refuses.
type Keys struct{ c *Client }

// KeysOf are those of a client's server.
func KeysOf(c *Client) Keys { return Keys{c} }

// Rotation tells how far the rotation of the server's keys is.
func (k Keys) Rotation(ctx context.Context) (*wire.KeyRotation, error) {
	var out wire.KeyRotation
	return &out, k.c.do(ctx, http.MethodGet, "/v1/rotation", nil, nil, &out)
}

// Rotate begins or ends the rotation of a key, authority or secret.
func (k Keys) Rotate(ctx context.Context, key string, r wire.Rotate) (*wire.KeyRotation, error) {
	var out wire.KeyRotation
	return &out, k.c.do(ctx, http.MethodPost, "/v1/rotation/"+url.PathEscape(key), nil, r, &out)
}

// Suspended lists users and tokens of a restored backup that are refused.
func (k Keys) Suspended(ctx context.Context) ([]string, error) {
	var out wire.Names
	err := k.c.do(ctx, http.MethodGet, "/v1/suspended", nil, nil, &out)
	return out.Names, err
}

// Resume accepts users and tokens of a restored backup again, by name or all. It gives the names.
func (k Keys) Resume(ctx context.Context, r wire.Resume) ([]string, error) {
	var out wire.Names
	err := k.c.do(ctx, http.MethodPost, "/v1/resume", nil, r, &out)
	return out.Names, err
}
