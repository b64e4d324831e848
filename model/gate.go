package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"octet/collective"
)

// The contracts that the fused operator can be held to.
const (
	ContractExtended = "extended" // float32 activations are admitted
	ContractDevice   = "device"   // float16 and bfloat16 only, as the operator on the device
)

// The comm modes of the fused operator as a flag spells them. None leaves the
// choice to the operator, whose own default is ai_cpu; it does not switch
// fusion off.
const (
	CommModeAIV   = "aiv"
	CommModeAICPU = "ai_cpu"
	CommModeNone  = "none"
)

// The names of the options, as flags, as keys of [Options.Map] and, in upper
// case behind OCTET_, as environment variables.
const (
	nameFlashComm1       = "enable_flashcomm1"
	nameMinPrefillTokens = "flashcomm1_min_prefill_tokens"
	nameMinTP            = "flashcomm1_min_tp"
	nameMMRS             = "enable_mmrs_fusion"
	nameCommMode         = "mmrs_comm_mode"
	nameContract         = "mmrs_contract"
	nameChunk            = "chunk"
	nameMaxTokens        = "max_tokens_per_batch"
	nameMix              = "enable_mix_batch"
	namePositions        = "max_positions"
)

// Options are the settings of the forward pass and its planner. They are the
// same on every rank of a group, or the group does not form. [DefaultOptions]
// gives the defaults; the zero value is refused by Validate.
type Options struct {
	FlashComm1       bool   // shard the rows of prefill steps over the ranks
	MinPrefillTokens int    // rows that a step needs for that, at least; 1 and up
	MinTP            int    // ranks that a group needs for that, at least; 1 and up
	MMRS             bool   // fuse row-parallel products with their reduce-scatter
	CommMode         string // aiv, ai_cpu or none
	Contract         string // extended or device
	Chunk            int    // most prompt rows of one request in a step; 0: MaxTokens
	MaxTokens        int    // most rows of a step; 1 and up
	Mix              bool   // let prompt rows and decode rows share a step
	Positions        int    // of a sequence, prompt and new tokens; 0: as many as the model says
}

// DefaultOptions is what holds where nothing is set: no sharding, and prefill
// and decode steps kept apart.
func DefaultOptions() Options {
	return Options{
		MinPrefillTokens: 8192,
		MinTP:            8,
		CommMode:         CommModeAIV,
		Contract:         ContractExtended,
		MaxTokens:        10240,
	}
}

// Validate names the first option that is out of range.
func (o Options) Validate() error {
	switch {
	case o.MinPrefillTokens < 1:
		return fmt.Errorf("option %s is %d: must be at least 1", nameMinPrefillTokens,
			o.MinPrefillTokens)
	case o.MinTP < 1:
		return fmt.Errorf("option %s is %d: must be at least 1", nameMinTP, o.MinTP)
	case !slices.Contains([]string{CommModeAIV, CommModeAICPU, CommModeNone}, o.CommMode):
		return fmt.Errorf("option %s is %q: must be aiv, ai_cpu or none", nameCommMode, o.CommMode)
	case o.Contract != ContractExtended && o.Contract != ContractDevice:
		return fmt.Errorf("option %s is %q: must be extended or device", nameContract, o.Contract)
	case o.Chunk < 0:
		return fmt.Errorf("option %s is %d: must not be negative", nameChunk, o.Chunk)
	case o.MaxTokens < 1:
		return fmt.Errorf("option %s is %d: must be at least 1", nameMaxTokens, o.MaxTokens)
	case o.Positions < 0:
		return fmt.Errorf("option %s is %d: must not be negative", namePositions, o.Positions)
	}
	return nil
}

// Map is every option by its name, in the spelling that Set reads. Two ranks
// may join the same group only if their maps are equal.
func (o Options) Map() map[string]string {
	return map[string]string{
		nameFlashComm1:       strconv.FormatBool(o.FlashComm1),
		nameMinPrefillTokens: strconv.Itoa(o.MinPrefillTokens),
		nameMinTP:            strconv.Itoa(o.MinTP),
		nameMMRS:             strconv.FormatBool(o.MMRS),
		nameCommMode:         o.CommMode,
		nameContract:         o.Contract,
		nameChunk:            strconv.Itoa(o.Chunk),
		nameMaxTokens:        strconv.Itoa(o.MaxTokens),
		nameMix:              strconv.FormatBool(o.Mix),
		namePositions:        strconv.Itoa(o.Positions),
	}
}

// Set gives one option a value written as text. The name may have dashes for
// underscores. Ranges are checked by Validate, not here.
func (o *Options) Set(name, value string) error {
	var err error
	name = strings.ReplaceAll(name, "-", "_")
	switch name {
	case nameFlashComm1:
		err = setBool(&o.FlashComm1, value)
	case nameMinPrefillTokens:
		err = setInt(&o.MinPrefillTokens, value)
	case nameMinTP:
		err = setInt(&o.MinTP, value)
	case nameMMRS:
		err = setBool(&o.MMRS, value)
	case nameCommMode:
		o.CommMode = value
	case nameContract:
		o.Contract = value
	case nameChunk:
		err = setInt(&o.Chunk, value)
	case nameMaxTokens:
		err = setInt(&o.MaxTokens, value)
	case nameMix:
		err = setBool(&o.Mix, value)
	case namePositions:
		err = setInt(&o.Positions, value)
	default:
		return fmt.Errorf("option %s: no such option", name)
	}
	if err != nil {
		return fmt.Errorf("option %s: %w", name, err)
	}
	return nil
}

// MaxPositions is how many positions a sequence may have. A model computes positions beyond
// its own MaxPositions like any other; it was only not trained for them.
func (o Options) MaxPositions(c *Config) int {
	if o.Positions == 0 {
		return c.MaxPositions
	}
	return o.Positions
}

func setBool(to *bool, value string) error {
	v, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false", value)
	}
	*to = v
	return nil
}

func setInt(to *int, value string) error {
	v, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", value)
	}
	*to = v
	return nil
}

// Facts are what the gate looks at in a step. They are equal on every rank.
type Facts struct {
	Rows       int // tokens computed in the step, over all requests
	DecodeRows int // of which continue a request whose prompt is complete
}

// Why FC1 is not active in a step. The texts are fixed, so that they can be
// counted.
const (
	ReasonFlag   = "enable_flashcomm1 is off"
	ReasonEmpty  = "empty step"
	ReasonSingle = "one rank has nothing to shard"
	ReasonRanks  = "fewer ranks than flashcomm1_min_tp"
	ReasonDecode = "decode row in step"
	ReasonRows   = "fewer rows than flashcomm1_min_prefill_tokens"
)

// Why a projection is not fused with its reduce-scatter.
const (
	FuseReasonInactive = "fc1 is not active"
	FuseReasonFlag     = "enable_mmrs_fusion is off"
	FuseReasonRanks    = "mmrs runs on 2, 4 or 8 ranks"
	FuseReasonType     = "mmrs_contract device refuses float32"
	FuseReasonBias     = "mmrs takes no bias"
	FuseReasonWidth    = "k per rank outside [256, 65535)"
)

// Bounds of the fused operator on K, the columns of one rank's activation.
const (
	mmrsWidthMin = 256
	mmrsWidthEnd = 65535
)

// rowAlign is what the rows of each rank's shard are a multiple of.
const rowAlign = 16

// Fuse has one bit for each kind of row-parallel projection: it runs as
// MatmulReduceScatter.
type Fuse struct{ O, Down bool }

// FuseReason says for each kind why it does not; empty where it does.
type FuseReason struct{ O, Down string }

// Decision is how a step runs. It follows from the options, the model's
// config, the number of ranks and the facts of the step, and from nothing that
// could differ between ranks.
//
// Invariant: FC1 is true exactly if Reason is empty, and then P and L are set:
// P rows of padded sequence, L = P/tp of them on each rank. Otherwise both are 0
// and nothing is fused.
type Decision struct {
	FC1        bool
	Reason     string // why not; one of the Reason constants
	P, L       int
	Fuse       Fuse
	FuseReason FuseReason
	Mode       collective.CommMode // how fused projections communicate
}

// String is the decision in words.
func (d Decision) String() string {
	if !d.FC1 {
		return "fc1 off (" + d.Reason + ")"
	}
	kind := func(fused bool, why string) string {
		if fused {
			return "mmrs " + d.Mode.String()
		}
		return "unfused (" + why + ")"
	}
	return fmt.Sprintf("fc1 on with %d of %d rows, o_proj %s, down_proj %s", d.L, d.P,
		kind(d.Fuse.O, d.FuseReason.O), kind(d.Fuse.Down, d.FuseReason.Down))
}

// Decide is the gate. The options must be valid.
func (o Options) Decide(c *Config, tp int, f Facts) Decision {
	d := Decision{Reason: o.refuse(tp, f), Mode: o.mode()}
	d.FC1 = d.Reason == ""
	if d.FC1 {
		d.P, d.L = padded(f.Rows, tp)
	}
	d.FuseReason = FuseReason{
		O:    o.refuseFuse(d.FC1, tp, c.Heads*c.HeadDim/tp, c.AttentionBias),
		Down: o.refuseFuse(d.FC1, tp, c.IntermediateSize/tp, false),
	}
	d.Fuse = Fuse{O: d.FuseReason.O == "", Down: d.FuseReason.Down == ""}
	return d
}

// refuse says why FC1 stays off, from the most general reason to the one that
// changes with every step.
func (o Options) refuse(tp int, f Facts) string {
	switch {
	case !o.FlashComm1:
		return ReasonFlag
	case f.Rows == 0:
		return ReasonEmpty
	case tp == 1:
		return ReasonSingle
	case tp < o.MinTP:
		return ReasonRanks
	case f.DecodeRows > 0:
		return ReasonDecode
	case f.Rows < o.MinPrefillTokens:
		return ReasonRows
	}
	return ""
}

// refuseFuse says why a projection with width columns of activation on each
// rank is not fused. bias is the module's: a rank that happens to hold no bias
// must not decide otherwise than one that does.
func (o Options) refuseFuse(active bool, tp, width int, bias bool) string {
	switch {
	case !active:
		return FuseReasonInactive
	case !o.MMRS:
		return FuseReasonFlag
	case tp != 2 && tp != 4 && tp != 8:
		return FuseReasonRanks
	case o.Contract == ContractDevice:
		return FuseReasonType
	case bias:
		return FuseReasonBias
	case width < mmrsWidthMin || width >= mmrsWidthEnd:
		return FuseReasonWidth
	}
	return ""
}

// mode resolves none, which leaves the choice to the operator, to the
// operator's default.
func (o Options) mode() collective.CommMode {
	if o.CommMode == CommModeAIV {
		return collective.AIV
	}
	return collective.AICPU
}

// padded is the length of the padded sequence of rows tokens, a multiple of
// rowAlign rows on each of tp ranks, and the share of one rank.
func padded(rows, tp int) (p, l int) {
	align := rowAlign * tp
	p = (rows + align - 1) / align * align
	return p, p / tp
}
