(* VLA's recursion in exact arithmetic, for any number of tokens: its penalty, its state, and least squares. *)
From mathcomp Require Import all_ssreflect all_algebra.
From Linattest Require Import forms penalty energy.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* M_t = lam0 I + sum over s < t of u_s u_s^T: the penalty matrix before token t *)
Definition penalty (R : realFieldType) d (lam0 : R) (u : nat -> 'cV[R]_d) t : 'M[R]_d :=
  lam0%:M + \sum_(s < t) u s *m (u s)^T.

(* u_t^T A_t u_t, A_t the inverse of the matrix before token t *)
Definition growth (R : realFieldType) d (lam0 : R) (u : nat -> 'cV[R]_d) t : R :=
  form (invmx (penalty lam0 u t)) (u t) (u t).

(* a_t: the gain of token t, from the matrix that holds u_t already *)
Definition gains (R : realFieldType) d (lam0 : R) (u k : nat -> 'cV[R]_d) (n : nat -> R) t : 'cV[R]_d :=
  gain (penalty lam0 u t.+1) (k t) (n t).

(* S <- S + (v - S k) a^T *)
Fixpoint state (R : realFieldType) m d (start : 'M[R]_(m, d)) (v : nat -> 'cV[R]_m) (k a : nat -> 'cV[R]_d) t :=
  if t is t'.+1 then let S := state start v k a t' in S + (v t' - S *m k t') *m (a t')^T else start.

Section Penalty.
Variables (R : realFieldType) (d : nat) (lam0 : R) (u : nat -> 'cV[R]_d).
Hypothesis positive : 0 < lam0.
Local Notation M := (penalty lam0 u).

Lemma penalty0 : M 0 = lam0%:M.
Proof. by rewrite /penalty big_ord0 addr0. Qed.
Lemma penaltyS t : M t.+1 = M t + u t *m (u t)^T.
Proof. by rewrite /penalty big_ord_recr addrA. Qed.
Lemma penalty_symmetric t : symmetric (M t).
Proof.
elim: t => [|t IH]; first by rewrite penalty0; apply: tr_scalar_mx.
by rewrite penaltyS; apply: symmetric_add => //; apply: symmetric_outer.
Qed.
Lemma penalty_pd t : pd (M t).
Proof.
elim: t => [|t IH]; first by rewrite penalty0; apply: pd_scalar.
by rewrite penaltyS; apply/pd_add/psd_outer.
Qed.
Lemma growth_ge0 t : 0 <= growth lam0 u t.
Proof. exact/pd_psd/pd_inv/penalty_pd/penalty_symmetric. Qed.

(* The factors of the Lyapunov function multiply to a ratio of determinants. *)
Theorem growth_is_determinant T : (\prod_(t < T) (1 + growth lam0 u t)) * \det (M 0) = \det (M T).
Proof.
elim: T => [|T IH]; first by rewrite big_ord0 mul1r.
by rewrite big_ord_recr /= mulrAC IH penaltyS determinant_lemma ?pd_unit //; apply: penalty_pd.
Qed.

(* lam0 bounds M_t from below. *)
Lemma penalty_floor t x : lam0 * dot x x <= form (M t) x x.
Proof.
elim: t => [|t IH]; first by rewrite penalty0 -scalemx1 form_scale form1.
by rewrite penaltyS form_add ler_paddr // psd_outer.
Qed.
End Penalty.

Section LeastSquares.
Variables (R : realFieldType) (m d : nat) (lam0 : R) (k : nat -> 'cV[R]_d) (v : nat -> 'cV[R]_m).
Hypothesis positive : 0 < lam0.

(* With u = k and the gain not normalised the recursion is recursive least squares with ridge lam0. *)
Theorem least_squares T :
  state 0 v k (fun t => invmx (penalty lam0 k t.+1) *m k t) T
  = (\sum_(t < T) v t *m (k t)^T) *m invmx (penalty lam0 k T).
Proof.
have unitM t : penalty lam0 k t \in unitmx by apply/pd_unit/penalty_pd.
apply: (can_inj (mulmxK (unitM T))); rewrite mulmxKV //.
elim: T => [|T IH]; first by rewrite /= mul0mx big_ord0.
rewrite /= big_ord_recr /= mulmxDl -mulmxA trmx_mul (symmetric_inv (penalty_symmetric _ _ _)).
rewrite mulmxKV // {1}penaltyS mulmxDr IH mulmxBl -!mulmxA [in LHS]mulmxA -addrA; congr (_ + _).
by rewrite addrC subrK.
Qed.
End LeastSquares.

(* Twin: the growth factors from the inverse that holds u_t already. *)
Theorem twin_growth_is_determinant : forall R : realFieldType, ~ (forall d lam0 (u : nat -> 'cV[R]_d) T, 0 < lam0 ->
  (\prod_(t < T) (1 + form (invmx (penalty lam0 u t.+1)) (u t) (u t))) * \det (penalty lam0 u 0)
  = \det (penalty lam0 u T)).
Proof.
move=> R /(_ 1%N 1 (fun=> 1%:M) 1%N ltr01); rewrite big_ord1 penaltyS penalty0.
rewrite tr_scalar_mx -scalar_mxM -raddfD invmx_scalar one_form !det_scalar1 !mulr1 mul1r.
move=> /addrI /eqP; rewrite invr_eq1 -mulr2n pnatr_eq1; exact/negP.
Qed.
