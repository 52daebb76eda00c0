package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/onpath/onpath"
)

// askPatience is how long a registry may take to say what a tag means.
const askPatience = 3 * time.Second

// quiet takes what the resolver logs.
var quiet = func() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}()

// Tagged reports whether an image's reference names a tag of a registry, which may come to
// mean another image, and not one by its digest.
func Tagged(image string) bool {
	return image != "" && image != onpath.HostImage && !onpath.LocalImage(image) && !strings.Contains(image, "@") &&
		!strings.HasPrefix(image, onpath.ImageHost+"/")
}

// ResolveImage asks the registry what a tag means, and returns the reference with the digest
// beside the tag. The caller's machine asks: a server that asked for its tenants could be
// made to look into its own network.
func ResolveImage(ctx context.Context, image string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	ctx = log.WithLogger(ctx, quiet) // what fails is returned
	hosts := docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost))
	_, is, err := docker.NewResolver(docker.ResolverOptions{Hosts: hosts}).Resolve(ctx, image)
	if err == nil {
		return image + "@" + is.Digest.String(), nil
	}
	registry, _, _ := strings.Cut(image, "/")
	code, why := onpath.CodeUnavailable, fmt.Sprintf("%s does not tell its digest: %v", registry, err)
	var name *net.DNSError
	var dial *net.OpError
	switch {
	case errdefs.IsNotFound(err):
		code, why = onpath.CodeNotFound, registry+" has no such image"
	case errors.As(err, &name) && name.IsNotFound:
		why = "there is no host " + registry
	case errors.As(err, &dial) || errors.Is(err, context.DeadlineExceeded):
		why = registry + " does not answer here"
	}
	return "", &onpath.Error{Code: code, Message: fmt.Sprintf("image %s: %s", image, why), Cause: err}
}

// ResolveImages asks for several at once. It returns what could be found out, and errors of
// the others, both by reference.
func ResolveImages(ctx context.Context, images []string) (map[string]string, map[string]error) {
	type answer struct {
		image, ref string
		err        error
	}
	answers := make(chan answer)
	asked := map[string]bool{}
	for _, image := range images {
		if asked[image] {
			continue
		}
		asked[image] = true
		go func() {
			ref, err := ResolveImage(ctx, image)
			answers <- answer{image, ref, err}
		}()
	}
	refs, errs := map[string]string{}, map[string]error{}
	for range asked {
		if a := <-answers; a.err != nil {
			errs[a.image] = a.err
		} else {
			refs[a.image] = a.ref
		}
	}
	return refs, errs
}
