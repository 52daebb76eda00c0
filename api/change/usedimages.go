package change

import (
	"context"

	"github.com/onpath/onpath"
)

// UsedImages are those of functions, and of such as an unconfirmed change or a rollback may
// bring back.
func (s *Changes) UsedImages(ctx context.Context) ([]string, error) {
	used := s.writer.pending.images() // first: what is undone meanwhile is in the store by then
	list, _, err := s.d.Store.List(ctx, onpath.KindFunction, "")
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		used = append(used, imagesOf(o.(*onpath.Function))...)
	}
	more, err := s.writer.history.images(ctx)
	return append(used, more...), err
}

func imagesOf(f *onpath.Function) (images []string) {
	for _, b := range f.Spec.Brings().Images {
		images = append(images, *b.Image)
	}
	return images
}
