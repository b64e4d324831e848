package collective

import (
	"context"
	"fmt"
)

// AllGather writes to dst on every rank all ranks' src, in rank order: src of
// rank r to elements [r*n, (r+1)*n), where n is src.Count(). Any type moves. src
// may be this rank's slice of dst.
//
// Cost: one step and n(p-1) elements sent.
func (c *Comm) AllGather(ctx context.Context, call Call, dst, src Buffer) error {
	d := header{verb: AllGather, src: src.Type, dst: dst.Type, count: uint64(src.Count())}
	return c.do(ctx, call, d, c.checkGather(dst, src), func(o *operation) error {
		n := src.Count()
		copy(dst.slice(c.cfg.Rank*n, (c.cfg.Rank+1)*n).Data, src.Data)
		chunks := moveChunks(src)
		o.sendAll(src, chunks)
		for _, r := range c.others() {
			o.recvChunks(r, dst.slice(r*n, (r+1)*n), chunks)
		}
		return nil // the operation is over when all frames are done
	})
}

// Gather writes to dst at root all ranks' src, in rank order. dst is used at
// root only and may be the zero Buffer elsewhere. At root, src may be its slice
// of dst.
//
// Cost: one step and n elements sent by each rank but root.
func (c *Comm) Gather(ctx context.Context, call Call, dst, src Buffer, root int) error {
	args := c.checkRoot(root)
	if args == nil && c.cfg.Rank == root {
		args = c.checkGather(dst, src)
	} else if args == nil {
		args = src.check("src")
	}
	d := header{verb: Gather, src: src.Type, dst: src.Type, root: uint8(root),
		count: uint64(src.Count())}
	return c.do(ctx, call, d, args, func(o *operation) error {
		chunks := moveChunks(src)
		if c.cfg.Rank != root {
			o.sendChunks(root, src, chunks)
			return nil
		}
		n := src.Count()
		copy(dst.slice(root*n, (root+1)*n).Data, src.Data)
		for _, r := range c.others() {
			o.recvChunks(r, dst.slice(r*n, (r+1)*n), chunks)
		}
		return nil
	})
}

// Broadcast writes root's buf to every other rank's buf.
//
// Cost: one step and n(p-1) elements sent by root.
func (c *Comm) Broadcast(ctx context.Context, call Call, buf Buffer, root int) error {
	args := c.checkRoot(root)
	if args == nil {
		args = buf.check("buf")
	}
	d := header{verb: Broadcast, src: buf.Type, dst: buf.Type, root: uint8(root),
		count: uint64(buf.Count())}
	return c.do(ctx, call, d, args, func(o *operation) error {
		if c.cfg.Rank == root {
			o.sendAll(buf, moveChunks(buf))
		} else {
			o.recvChunks(root, buf, moveChunks(buf))
		}
		return nil
	})
}

// Barrier returns when every rank has entered it.
//
// Cost: one step without data.
func (c *Comm) Barrier(ctx context.Context, call Call) error {
	return c.do(ctx, call, header{verb: Barrier}, nil, func(*operation) error { return nil })
}

// recvChunks queues the landing of the chunks of b.
func (o *operation) recvChunks(peer int, b Buffer, chunks []span) {
	for _, s := range chunks {
		o.recv(peer, b.slice(s.from, s.to).Data)
	}
}

// moveChunks cuts a buffer that is moved and not reduced.
func moveChunks(b Buffer) []span {
	n := b.Count()
	return cut(n, n, chunkBytes/b.Type.Size())
}

func (c *Comm) checkRoot(root int) error {
	if root < 0 || root >= c.cfg.Size {
		return fmt.Errorf("root %d is not in 0..%d", root, c.cfg.Size-1)
	}
	return nil
}

// checkGather refuses a dst that cannot take every rank's src.
func (c *Comm) checkGather(dst, src Buffer) error {
	if err := src.check("src"); err != nil {
		return err
	}
	if err := dst.checkCount("dst", c.cfg.Size*src.Count()); err != nil {
		return err
	}
	if dst.Type != src.Type {
		return fmt.Errorf("src is %v and dst %v, a gather converts nothing", src.Type, dst.Type)
	}
	n := src.Count()
	return checkOverlap(dst, src, dst.slice(c.cfg.Rank*n, (c.cfg.Rank+1)*n), src)
}
