package mem_test

import (
	"fmt"
	"sync"
	"testing"

	"octet/collective"
	"octet/collective/mem"
)

// BenchmarkAllReduce is the time of one AllReduce of eight ranks in this process.
func BenchmarkAllReduce(b *testing.B) {
	for _, n := range []int{2, 1 << 10, 1 << 16, 1 << 20} {
		b.Run(fmt.Sprintf("floats=%d", n), func(b *testing.B) {
			net := mem.New(8)
			var all sync.WaitGroup
			b.SetBytes(int64(4 * n))
			b.ReportAllocs()
			for r := range 8 {
				data, lane := net.Rank(r)
				c, err := collective.New(collective.Config{RunID: "bench", Rank: r, Size: 8}, data, lane)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				all.Go(func() {
					src := collective.Float32s(make([]float32, n))
					dst := collective.Float32s(make([]float32, n))
					for range b.N {
						err := c.AllReduce(b.Context(), collective.Call{}, dst, src, collective.SUM)
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}
