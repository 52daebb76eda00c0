package api

import (
	"context"

	"github.com/onpath/onpath"
)

// usedImages are those of functions, and of such as an unconfirmed change or a rollback may
// bring back.
func (s *Server) usedImages(ctx context.Context) ([]string, error) {
	used := s.pending.images() // first: what is undone meanwhile is in the store by then
	list, _, err := s.o.Store.List(ctx, onpath.KindFunction, "")
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		used = append(used, imagesOf(o.(*onpath.Function))...)
	}
	more, err := s.imagesInHistory(ctx)
	return append(used, more...), err
}

func imagesOf(f *onpath.Function) (images []string) {
	for _, b := range f.Spec.Brings().Images {
		images = append(images, *b.Image)
	}
	return images
}
