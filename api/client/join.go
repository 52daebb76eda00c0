package client

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/wire"
)

// Join redeems a join token (the word that `onpath token create` prints) for a
// certificate, keeps it in dir, and returns a client that uses it. Name is the
// node's, where the token names none. The key is made here and stays here.
func Join(ctx context.Context, word, name, dir string) (*Client, error) {
	t, err := auth.ParseToken(word)
	if err != nil {
		return nil, err
	}
	h, err := auth.NewHolder(dir, t)
	if err != nil {
		return nil, err
	}
	request, err := h.Request()
	if err != nil {
		return nil, err
	}
	c := pinned(t)
	defer c.Close()
	var out wire.Joined
	err = c.do(ctx, http.MethodPost, "/v1/join", nil, wire.Join{Secret: t.Secret, Name: name, Request: string(request)}, &out)
	if err != nil {
		return nil, err
	}
	if err := h.Install([]byte(out.Certificate), []byte(out.Authority)); err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the certificate cannot be kept in %s: %w", dir, err)
	}
	return Remote(h), nil
}

// KeepFresh renews the certificate in time until ctx ends. On a unix socket
// there is none, and it returns at once.
func (c *Client) KeepFresh(ctx context.Context, log *slog.Logger) {
	if c.holder == nil {
		return
	}
	for {
		wait := time.Until(c.holder.RenewAt())
		if wait <= 0 {
			if err := c.Renew(ctx); err == nil {
				log.Info("certificate renewed", "until", c.holder.Expires())
				continue
			} else if ctx.Err() == nil {
				log.Warn("the certificate could not be renewed yet", "until", c.holder.Expires(), "error", err)
			}
			wait = time.Minute + rand.N(time.Minute)
		}
		select {
		case <-c.holder.News():
		case <-time.After(min(wait, time.Hour)): // clocks jump and machines sleep
		case <-ctx.Done():
			return
		}
	}
}

// freshen renews a user's certificate beside a request, once it is time. If that fails, the next
// request tries it again.
func freshen(ctx context.Context, c *Client) {
	if c.holder == nil || time.Now().Before(c.holder.RenewAt()) || !c.renews.CompareAndSwap(true, false) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if c.Renew(ctx) != nil {
		c.renews.Store(true)
	}
}

// Renew renews the certificate now.
func (c *Client) Renew(ctx context.Context) error {
	if c.holder == nil {
		return onpath.Errorf(onpath.CodeUnsupported, "a unix socket needs no certificate")
	}
	request, err := c.holder.Request()
	if err != nil {
		return err
	}
	var out wire.Joined
	if err := c.do(ctx, http.MethodPost, "/v1/renew", nil, wire.Renew{Request: string(request)}, &out); err != nil {
		return err
	}
	if err := c.holder.Install([]byte(out.Certificate), []byte(out.Authority)); err != nil {
		return err
	}
	c.Close() // the next connection shows the new one, by which the server sees that it is kept
	_, err = c.WhoAmI(ctx)
	return err
}

// CreateToken makes a join token.
func (c *Client) CreateToken(ctx context.Context, r auth.TokenRequest) (*wire.Token, error) {
	var out wire.Token
	return &out, c.do(ctx, http.MethodPost, "/v1/tokens", nil, r, &out)
}

// Tokens lists the join tokens that can still be used.
func (c *Client) Tokens(ctx context.Context) ([]auth.TokenInfo, error) {
	var out []auth.TokenInfo
	return out, c.do(ctx, http.MethodGet, "/v1/tokens", nil, nil, &out)
}

// DeleteToken makes a join token unusable.
func (c *Client) DeleteToken(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil, nil)
}

// Revoke makes all certificates of an identity unacceptable.
func (c *Client) Revoke(ctx context.Context, identity string) error {
	return c.do(ctx, http.MethodPost, "/v1/revoke", nil, wire.Revoke{Identity: identity}, nil)
}

// WhoAmI is who the server thinks the caller is.
func (c *Client) WhoAmI(ctx context.Context) (auth.Identity, error) {
	var out auth.Identity
	return out, c.do(ctx, http.MethodGet, "/v1/whoami", nil, nil, &out)
}
