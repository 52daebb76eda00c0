package leases

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/onpath/onpath"
)

// passwordPatience is how long an address may take to show a password, all in all.
const passwordPatience = 3 * time.Second

// Proves asks an address for the password of a claim, from the network of the node's
// uplinks: no redirect is followed, and no address of the machine itself asked.
func (l *Leases) Proves(ctx context.Context, r onpath.PasswordRequest) onpath.PasswordAnswer {
	if !onpath.Claimable(r.Address) || r.Password == "" {
		return onpath.PasswordAnswer{Saw: fmt.Sprintf("%s is asked for nothing", r.Address)}
	}
	ctx, cancel := context.WithTimeout(ctx, passwordPatience)
	defer cancel()
	shown, err := l.fetcher().shows(ctx, r.Address, r.Password)
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the URL, which is known
	}
	switch {
	case ctx.Err() != nil:
		return onpath.PasswordAnswer{Saw: fmt.Sprintf("no answer within %s", passwordPatience)}
	case err != nil:
		return onpath.PasswordAnswer{Wrong: errors.Is(err, errRedirect) || errors.Is(err, errTooLarge), Saw: err.Error()}
	case !shown:
		return onpath.PasswordAnswer{Wrong: true, Saw: "something else than the password"}
	}
	return onpath.PasswordAnswer{Proved: true, Saw: "the password"}
}
