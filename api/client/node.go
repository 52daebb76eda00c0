package client

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// NodeOptions say how a node reaches its server.
type NodeOptions struct {
	// Server is unix:///path, a path, https://host:port or empty.
	Server string
	// Token to join with, where Identity holds no certificate that is good;
	// empty: none.
	Token string
	Name  string // of the node
	// Identity is the folder of the certificate.
	Identity string
	// Socket of a server on this machine, where nothing else is said.
	Socket string
	Log    *slog.Logger
}

// ForNode reaches a node's server: through a unix socket, with the certificate
// of an earlier join, or by joining now. A certificate that the server refuses
// is replaced if there is a token.
func ForNode(ctx context.Context, o NodeOptions) (*Client, error) {
	address, https := strings.CutPrefix(o.Server, "https://")
	if o.Server != "" && !https {
		return Unix(strings.TrimPrefix(strings.TrimPrefix(o.Server, "unix:"), "//")), nil
	}
	if o.Token != "" && https {
		if err := sameServer(o.Token, address); err != nil {
			return nil, err
		}
	}
	switch {
	case auth.Joined(o.Identity):
		return rejoin(ctx, o, address)
	case o.Token != "":
		return o.join(ctx)
	case https:
		e := onpath.Errorf(onpath.CodeForbidden, "this node has not joined the server at %s", address)
		e.Remedy = "give it a token once: on the server, onpath token create --node " + o.Name + "; here, --token WORD"
		return nil, e
	}
	return Unix(o.Socket), nil
}

// sameServer refuses a token of another server than the one that is named.
func sameServer(word, address string) error {
	t, err := auth.ParseToken(word)
	if err != nil || t.Address == address {
		return err
	}
	e := onpath.Errorf(onpath.CodeInvalid, "the server is given as %s, but the token is for the server at %s", address, t.Address)
	e.Remedy = "leave the server out, since the token names it, or make a token for this address: on the server, onpath token create " +
		"--address " + address
	return e
}

// rejoin uses the certificate of an earlier join. Only with a token it is tried
// out first, since there is something to do if it is refused.
func rejoin(ctx context.Context, o NodeOptions, address string) (*Client, error) {
	h, err := auth.OpenHolder(o.Identity)
	if err != nil {
		if o.Token == "" {
			return nil, err
		}
		return o.joinAnew(ctx, err)
	}
	if o.Token != "" && address == "" {
		t, err := auth.ParseToken(o.Token)
		if err != nil {
			return nil, err
		}
		address = t.Address
	}
	if address != "" && h.Address() != address {
		e := onpath.Errorf(onpath.CodeInvalid, "this node has joined the server at %s, not %s", h.Address(), address)
		e.Remedy = "remove " + o.Identity + " to join another one"
		return nil, e
	}
	c := Remote(h)
	if o.Token == "" {
		return c, nil
	}
	// One that does not answer now may know us later.
	if err := c.known(ctx); onpath.CodeOf(err) == onpath.CodeForbidden {
		c.Close()
		return o.joinAnew(ctx, err)
	}
	return c, ctx.Err()
}

func (c *Client) known(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	_, err := c.WhoAmI(ctx)
	return err
}

// joinAnew replaces a certificate that is of no use any more.
func (o NodeOptions) joinAnew(ctx context.Context, refused error) (*Client, error) {
	o.Log.Warn("the certificate of an earlier join is refused; joining anew with the token", "folder", o.Identity, "error", refused)
	c, err := o.join(ctx)
	if err != nil {
		return nil, errors.Join(err, refused)
	}
	return c, nil
}

// join redeems the token; a server that is not up yet is waited for.
func (o NodeOptions) join(ctx context.Context) (*Client, error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		c, err := Join(ctx, o.Token, o.Name, o.Identity)
		if err == nil {
			o.Log.Info("joined", "server", c.Server())
			return c, nil
		}
		if !onpath.Passing(err) {
			return nil, err
		}
		o.Log.Warn("cannot join yet", "error", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}
